"""EAGLE drafting (Li et al. 2024, 2025): a small head guesses features, and an output matrix reads tokens off them.

Cost of one cycle: one head pass over the accepted rows, then one per level of the tree; each also multiplies by the
output matrix, the target's or a smaller one of its own. An EAGLE-1 head with the static tree is EAGLE-1, with the
dynamic tree EAGLE-2; an EAGLE-3 head with the dynamic tree is EAGLE-3.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import TreePolicy
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import Drafter, Observed, View
from eagle_jax.models.cache import KV, Cache
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static

# How much surer of its guesses a head is taken to be than it says. Its law tells how often a token is drawn; a node is
# walked if the target's largest (perturbed) logit is where the head's is, and of two laws that nearly agree the largest
# agree far more often than a draw from one hits a draw from the other.
SHARPNESS = 2.0


@pytree
class EagleState:
    """What the head remembers of the true text.

    Attributes:
        cache: the head's K/V of slots made of true features; draft rows never enter.
        guess: the head's output at the last slot, which stands for the root's feature.
    """

    cache: Cache
    guess: Float[Array, "b h"]


@pytree
class Branches:
    """Head rows of the tree under construction, level after level; they live for one cycle (p rows so far, f in the
    last level).

    Attributes:
        kv: the head's K/V of all rows so far, per layer.
        above: which of those rows each row of the last level sees: its ancestors and itself.
        features: the head's output at the last level (the parents' guess for the children to come).
        positions: position of each row so far.
    """

    kv: tuple[KV, ...]
    above: Bool[Array, "b f p"]
    features: Float[Array, "b f h"]
    positions: Int[Array, "b p"]


@pytree
class Eagle(Drafter):
    """Drafts with a head over the tree that `policy` grows.

    The tree grows in the head's vocabulary: scores, and the noise they are coupled to, are those of its tokens alone.

    Attributes:
        head: an EAGLE-1/2 or EAGLE-3 head.
        policy: which nodes to expand and which to keep.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with (common random
            numbers). Off only to measure what it buys.
        sharpness: the head's scores are `log_softmax(sharpness * logits)`: above 1 the tree grows deeper below likely
            guesses and narrower elsewhere. The published methods have 1. Uncoupled sampling always has 1: there a guess
            is right as often as the law says.
    """

    head: DraftHead
    policy: TreePolicy = static()
    coupled: bool = static(default=True)
    sharpness: float = static(default=SHARPNESS)

    @property
    def shape(self) -> TreeShape:
        return self.policy

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps

    def init(self, target: Target, batch: int, slots: int) -> EagleState:
        hidden_size = self.head.config.layers.hidden_size
        return EagleState(
            cache=self.head.empty_cache(batch, slots), guess=jnp.zeros((batch, hidden_size), target.activations)
        )

    def observe(self, target: Target, state: EagleState, observed: Observed) -> EagleState:
        """Feeds slots of true features: slot i has the feature of row i and the embedding of the token after it."""
        batch, rows = observed.following.shape
        steps = jnp.arange(rows, dtype=jnp.int32)[None]
        causal = jnp.broadcast_to(jnp.tril(jnp.ones((rows, rows), bool))[None], (batch, rows, rows))
        with jax.named_scope("draft_observe"):
            out, kv = self.head.forward(
                self.head.embed(target, jnp.maximum(observed.following, 0)),
                self.head.features(observed.hidden, observed.taps),
                observed.start[:, None] + steps,
                causal,
                state.cache,
            )
        last = jnp.take_along_axis(out, jnp.maximum(observed.count - 1, 0)[:, None, None], axis=1)[:, 0]
        return EagleState(
            cache=state.cache.write(kv, observed.start, state.cache.length + observed.count),
            guess=jnp.where((observed.count > 0)[:, None], last, state.guess),
        )

    def propose(self, target: Target, state: EagleState, view: View, mode: Sampling) -> tuple[Tree, EagleState]:
        def scores(features: Float[Array, "b f h"], depth: int) -> Float[Array, "b f d"]:
            logits = self.head.logits(target, features)
            if mode.sampled and not self.coupled:
                return sampling.scores(logits, None, view.settings, sampling.GREEDY)
            noise = view.noise_at(depth)
            if noise is not None:
                noise = self.head.drafted_part(noise)
            return sampling.scores(logits, noise, view.settings, mode, self.sharpness)

        def extend(
            branches: Branches, level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
        ) -> tuple[Float[Array, "b f d"], Branches]:
            tokens = self.head.target_ids(tokens)
            branches = self._grow(target, state.cache, branches, view.length + level - 1, tokens, parent_row)
            return scores(branches.features, level), branches

        with jax.named_scope("draft_tree"):
            roots = _no_branches(state)
            first = scores(state.guess[:, None], 0)[:, 0]
            tree, _ = self.policy.grow(view.root, first, extend, roots)
            guesses = self.head.target_ids(tree.tokens[:, 1:])  # the root is a target id already
        return dataclasses.replace(tree, tokens=jnp.concatenate([view.root[:, None], guesses], axis=1)), state

    def _grow(
        self,
        target: Target,
        cache: Cache,
        branches: Branches,
        position: Int[Array, "b"],
        tokens: Int[Array, "b f"],
        parent_row: Int[Array, "b f"],
    ) -> Branches:
        """One level deeper: slots made of each parent's guessed feature and the guessed token below it."""
        features = jnp.take_along_axis(branches.features, parent_row[:, :, None], axis=1)
        ancestors = jnp.take_along_axis(branches.above, parent_row[:, :, None], axis=1)
        itself = jnp.broadcast_to(jnp.eye(tokens.shape[1], dtype=bool)[None], (*tokens.shape, tokens.shape[1]))
        above = jnp.concatenate([ancestors, itself], axis=2)
        positions = jnp.broadcast_to(position[:, None], tokens.shape)
        out, kv = self.head.forward(
            self.head.embed(target, tokens), features, positions, above, cache, branches.kv, branches.positions
        )
        return Branches(
            kv=tuple(_join(old, new) for old, new in zip(branches.kv, kv, strict=True)) if branches.kv else kv,
            above=above,
            features=out,
            positions=jnp.concatenate([branches.positions, positions], axis=1),
        )


def _no_branches(state: EagleState) -> Branches:
    """The root alone: its slot is the last one in the cache, so no draft row exists yet."""
    batch = state.guess.shape[0]
    return Branches(
        kv=(),
        above=jnp.zeros((batch, 1, 0), bool),
        features=state.guess[:, None],
        positions=jnp.zeros((batch, 0), jnp.int32),
    )


def _join(old: KV, new: KV) -> KV:
    return jnp.concatenate([old[0], new[0]], axis=2), jnp.concatenate([old[1], new[1]], axis=2)
