"""EAGLE drafting (Li et al. 2024, 2025): a small head guesses features, and an output matrix reads tokens off them.

Cost of one step: one head pass over the accepted rows, then one per level of the tree; each also multiplies by the
output matrix, the target's or a smaller one of its own. An EAGLE-1 head with the static tree is EAGLE-1, with the
dynamic tree EAGLE-2; an EAGLE-3 head with the dynamic tree is EAGLE-3.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.policy import TreePolicy, check_width
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters import guided, ranking
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.drafters.branches import Branches
from eagle_jax.models.cache import Cache
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import causal
from eagle_jax.models.target import PADDING_POSITION, Target
from eagle_jax.struct import pytree, static


@pytree
class EagleState:
    """The head's state after the true text.

    Attributes:
        cache: the head's K/V of slots made of true features; draft rows never enter.
        guess: the head's output at the last slot, which stands for the root's feature.
    """

    cache: Cache
    guess: Float[Array, "b h"]


@dataclasses.dataclass(frozen=True)
class EagleDrafter(Drafter):
    """Base class of drafters whose head reads features of the text, over the tree that `policy` grows.

    The tree grows in the head's vocabulary: scores and noise cover the head's tokens only.

    Attributes:
        head: an EAGLE-1/2, EAGLE-3 or P-EAGLE head.
        policy: which nodes to expand and which to keep.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with (common random
            numbers). Off only to measure what it buys.
    """

    head: DraftHead
    policy: TreePolicy = static()
    coupled: bool = static(default=True)

    def __post_init__(self):
        check_width(self.policy, self.head.draft_vocab_size)

    @property
    def shape(self) -> TreeShape:
        return self.policy

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps

    def init(self, target: Target, batch: int, slots: int) -> EagleState:
        hidden_size = self.head.config.layers.hidden_size
        return EagleState(
            cache=self.head.empty_cache(batch, slots, target.activations),
            guess=jnp.zeros((batch, hidden_size), target.activations),
        )

    def observe(self, target: Target, state: EagleState, observed: CommittedRows) -> EagleState:
        """Feeds slots of true features: slot i has the feature of row i and the embedding of the token after it.

        Of a chunk of the text only keys and values are needed: the last layer's attention and MLP are not computed.
        Many rows, read after a pause, are a chunk and the last row.
        """
        if observed.checked is None and not observed.is_prefill_chunk and observed.following.shape[1] > 1:
            chunk, last = observed.split_last()
            return self.observe(target, self.observe(target, state, chunk), last)
        steps, chain = causal(*observed.following.shape)
        positions = jnp.where(steps < observed.count[:, None], observed.start[:, None] + steps, PADDING_POSITION)
        with jax.named_scope("draft_observe"):
            embeddings = self.head.embed(target, jnp.maximum(observed.following, 0))
            slots = embeddings, self.head.features(observed.hidden, observed.taps), positions, chain, state.cache
            if observed.is_prefill_chunk:
                kv, guess = self.head.keys_and_values(*slots), state.guess
            else:
                out, kv = self.head.forward(*slots)
                # keys and values do not hang on what attention reads of the cache; written sooner they cost a copy
                out, kv = jax.lax.optimization_barrier((out, kv))
                guess = observed.last(out, state.guess)
        return EagleState(cache=state.cache.write(kv, observed.start, state.cache.length + observed.count), guess=guess)


@pytree
class Eagle(EagleDrafter):
    """Drafts level by level, each reading what the head made of the level above."""

    def __post_init__(self):
        super().__post_init__()
        if self.head.num_drafted is not None:
            raise ValueError(
                "a P-EAGLE head, which never learnt to read its own output; draft with PEagle, in one pass"
            )

    def propose(self, target: Target, state: EagleState, view: View, mode: Sampling) -> tuple[Tree, EagleState]:
        def scores(logits: Float[Array, "b f d"], depth: int) -> Scores:
            return ranking.scores(logits, depth, view, mode, self.coupled, drafted_part=self.head.drafted_part)

        def run(tokens, features, positions, above, draft_kv, draft_positions):
            embeddings = self.head.embed(target, tokens)
            slots = embeddings, features, positions, above, state.cache
            out, kv = self.head.forward(*slots, draft_kv, draft_positions)
            return out, kv, self.head.logits(target, out)

        def extend(
            branches: Branches, level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
        ) -> tuple[Scores, Branches]:
            # a slot is made of its parent's guessed feature and the guessed token below it, and stands at the parent's
            ids = self.head.target_ids(tokens)
            branches, logits = branches.grow(run, view.length + level - 1, ids, parent_row)
            return scores(logits, level), branches

        with jax.named_scope("draft_tree"):
            first = scores(self.head.logits(target, state.guess[:, None]), 0)[:, 0]
            tree = guided.grow(
                *(self.policy, view, first, extend, Branches.at_root(state.guess)),
                drafted_part=self.head.drafted_part,
                target_ids=self.head.target_ids,
            )
            return guided.in_target_ids(tree, view.root, self.head.target_ids), state
