"""How likely guesses are to be accepted, estimated from guesses that were verified before.

A drafter's own probability of a guess depends on its training, on the text, and on the depth, since deep guesses build
on guesses. A table maps it to the measured rate at which such guesses are accepted. The probability of a path is the
product over its tokens.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from eagle_jax.decoding.tree import Tree
from eagle_jax.decoding.verify import walk
from eagle_jax.struct import pytree

DEPTHS = 8  # deeper guesses use the table of the last depth
LOG_ODDS = np.linspace(-7.0, 5.0, 17, dtype=np.float32)
"""Knots of the tables: the drafter's log-odds of a token, given its parent."""
STEP = float(LOG_ODDS[1] - LOG_ODDS[0])
MIN_PROBABILITY = 1e-6  # of a guess: a path stays possible even if no such guess was accepted yet


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """Probability that a guess is accepted, given that its parent is, before a request has guesses of its own.

    Attributes:
        greedy, sampled: by depth and the drafter's log-odds (`LOG_ODDS`), non-decreasing in the log-odds.
    """

    greedy: Float[np.ndarray, "d k"]
    sampled: Float[np.ndarray, "d k"]


def _as_drafted() -> Float[np.ndarray, "d k"]:
    return np.tile((1 / (1 + np.exp(-LOG_ODDS))).astype(np.float32), (DEPTHS, 1))


AS_DRAFTED = Prior(_as_drafted(), _as_drafted())
"""The prior of an unknown drafter: guesses are accepted with the drafter's own probability."""


@pytree
class Calibration:
    """Probability that a guess is accepted, given that its parent is, by its depth and the drafter's log-odds.

    Attributes:
        probability: at the knots, non-decreasing (d depths, k knots).
    """

    probability: Float[Array, "b d k"]

    def __call__(self, edges: Float[Array, "b *nodes"], depth: int) -> Float[Array, "b *nodes"]:
        """Computes log-probabilities of guesses below nodes at `depth`; -inf for no guess.

        Args:
            edges: the drafter's log-probability of each token, given its parent.
        """
        table = self.probability[:, min(depth, DEPTHS - 1)]
        table = table.reshape(len(table), *[1] * (edges.ndim - 1), -1)
        probability = jnp.sum(between_knots(edges) * table, axis=-1)
        return jnp.where(edges > -jnp.inf, jnp.log(jnp.clip(probability, MIN_PROBABILITY, 1.0)), -jnp.inf)


@pytree
class Counts:
    """Counts of guesses whose parents were accepted, and of accepted ones among them, split between two knots each."""

    guessed: Float[Array, "b d k"]
    accepted: Float[Array, "b d k"]

    @staticmethod
    def none(batch: int) -> "Counts":
        zeros = jnp.zeros((batch, DEPTHS, len(LOG_ODDS)), jnp.float32)
        return Counts(guessed=zeros, accepted=jnp.zeros_like(zeros))  # a buffer can be donated only once

    def of_step(self, tree: Tree, draws: Int[Array, "b n"], depth: int, active: Bool[Array, "b"]) -> "Counts":
        """Returns the counts after one more step.

        Args:
            tree: the verified tree, with `edges`.
            draws: the token that the target drew after each node.
            depth: maximum depth of a node.
            active: whether each row took part.
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
        """Returns the posterior mean probabilities of guesses.

        Args:
            prior: probabilities without counts.
            strength: number of guesses that the prior at each knot counts for.
        """
        mean = (strength * prior + self.accepted) / (strength + self.guessed)
        return Calibration(lax.cummax(mean, axis=2))


def between_knots(edges: Float[Array, "*nodes"]) -> Float[Array, "*nodes k"]:
    """Returns interpolation weights of the two knots around each log-probability; they sum to 1."""
    edges = jnp.where(edges > -jnp.inf, jnp.minimum(edges, 0.0), -jnp.inf)  # nan: no guess
    log_odds = edges - jnp.log(-jnp.expm1(edges))
    place = jnp.clip((log_odds - float(LOG_ODDS[0])) / STEP, 0.0, len(LOG_ODDS) - 1)[..., None]
    knots = jnp.arange(len(LOG_ODDS), dtype=jnp.float32).reshape(*[1] * edges.ndim, -1)
    return jnp.maximum(0.0, 1.0 - jnp.abs(place - knots))


def _fold(depth: int) -> Float[np.ndarray, "p d"]:
    """Returns a one-hot matrix from depths of a tree to depths of the table."""
    return (np.minimum(np.arange(depth), DEPTHS - 1)[:, None] == np.arange(DEPTHS)).astype(np.float32)
