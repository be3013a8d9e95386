"""Acceptance probabilities of drafted tokens, estimated from earlier verification.

A drafter's distribution says how often it takes a token to be drawn. Whether that is so depends on how it was trained,
on the text, and on the depth: deep guesses are made of guesses. So the probability that a drafter gives to a token
below its parent is looked up in a table of what became of such guesses. A path's is the product of its tokens'.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from eagle_jax.decoding.tree import Tree
from eagle_jax.decoding.verify import walk
from eagle_jax.struct import pytree

DEPTHS = 8  # deeper guesses are taken to be like the last of these
LOG_ODDS = np.linspace(-7.0, 5.0, 17, dtype=np.float32)
"""Knots of the tables: log-odds that a drafter gives to a token below its parent."""
STEP = float(LOG_ODDS[1] - LOG_ODDS[0])
MIN_PROBABILITY = (
    1e-6  # probability of a guess at least: a path is never impossible because no such guess was accepted yet
)


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """Probability that a guess is accepted if its parent is, before a request has shown more.

    Attributes:
        greedy, sampled: by depth and the drafter's log-odds (`LOG_ODDS`), never falling with them.
    """

    greedy: Float[np.ndarray, "d k"]
    sampled: Float[np.ndarray, "d k"]


def _as_drafted() -> Float[np.ndarray, "d k"]:
    return np.tile((1 / (1 + np.exp(-LOG_ODDS))).astype(np.float32), (DEPTHS, 1))


AS_DRAFTED = Prior(_as_drafted(), _as_drafted())
"""The calibration of an unknown drafter, whose probabilities are taken as they are."""


@pytree
class Calibration:
    """Probability that a guess is accepted if its parent is, by its depth and by what the drafter gives it.

    Attributes:
        probability: at the knots, never falling from one to the next (d depths, k knots).
    """

    probability: Float[Array, "b d k"]

    def __call__(self, edges: Float[Array, "b *nodes"], depth: int) -> Float[Array, "b *nodes"]:
        """Computes the logarithms of the probabilities of guesses below nodes at `depth`; -inf where there is none.

        Args:
            edges: the drafter's log-probability of each token below its parent.
        """
        table = self.probability[:, min(depth, DEPTHS - 1)]
        table = table.reshape(len(table), *[1] * (edges.ndim - 1), -1)
        probability = jnp.sum(between_knots(edges) * table, axis=-1)
        return jnp.where(edges > -jnp.inf, jnp.log(jnp.clip(probability, MIN_PROBABILITY, 1.0)), -jnp.inf)


@pytree
class Counts:
    """Counts of guesses with an accepted parent, and of accepted guesses, each divided between two knots."""

    guessed: Float[Array, "b d k"]
    accepted: Float[Array, "b d k"]

    @staticmethod
    def none(batch: int) -> "Counts":
        nothing = jnp.zeros((batch, DEPTHS, len(LOG_ODDS)), jnp.float32)
        return Counts(guessed=nothing, accepted=jnp.zeros_like(nothing))  # a buffer can be donated only once

    def of_step(self, tree: Tree, draws: Int[Array, "b n"], depth: int, active: Bool[Array, "b"]) -> "Counts":
        """Returns the counts after one more step.

        Args:
            tree: with `edges`.
            draws: the token that the target drew after each node.
            depth: no node is deeper.
            active: whether a row took part.
        """
        assert tree.edges is not None
        path = walk(tree, draws, depth)
        is_read = active[:, None] & (jnp.arange(depth)[None] < path.count[:, None])
        below = (tree.parent[:, None] == path.nodes[:, :depth, None]) & tree.valid[:, None] & is_read[..., None]
        hit = below & (tree.tokens[:, None] == path.draws[:, :depth, None])
        knots, fold = between_knots(tree.edges), jnp.asarray(_fold(depth))
        guessed, accepted = (
            jnp.einsum("bpn,bnk,pd->bdk", part.astype(jnp.float32), knots, fold) for part in (below, hit)
        )
        return Counts(guessed=self.guessed + guessed, accepted=self.accepted + accepted)

    def after(self, prior: Float[Array, "b d k"], strength: float) -> Calibration:
        """Returns the expected probabilities of further guesses.

        Args:
            prior: probabilities before anything was counted.
            strength: guesses that the prior at each knot counts for.
        """
        mean = (strength * prior + self.accepted) / (strength + self.guessed)
        return Calibration(lax.cummax(mean, axis=2))


def between_knots(edges: Float[Array, "*nodes"]) -> Float[Array, "*nodes k"]:
    """Returns the weights of the two knots that each log-probability lies between; they add up to 1."""
    edges = jnp.where(edges > -jnp.inf, jnp.minimum(edges, 0.0), -jnp.inf)  # nan is no guess
    log_odds = edges - jnp.log(-jnp.expm1(edges))
    place = jnp.clip((log_odds - float(LOG_ODDS[0])) / STEP, 0.0, len(LOG_ODDS) - 1)[..., None]
    knots = jnp.arange(len(LOG_ODDS), dtype=jnp.float32).reshape(*[1] * edges.ndim, -1)
    return jnp.maximum(0.0, 1.0 - jnp.abs(place - knots))


def _fold(depth: int) -> Float[np.ndarray, "p d"]:
    """Returns the depth of the table that nodes below each depth of a tree belong to."""
    return (np.minimum(np.arange(depth), DEPTHS - 1)[:, None] == np.arange(DEPTHS)).astype(np.float32)
