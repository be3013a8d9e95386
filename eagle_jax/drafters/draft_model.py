"""Drafting with a small model of the same vocabulary (Leviathan et al. 2023; Chen et al. 2023; SpS in Spec-Bench).

The published method drafts a chain; with the dynamic tree it drafts as EAGLE-2, with a whole model as the head.

Cost of one step: one pass of the small model over the accepted rows, and one for every further level of the tree, each
with its output matrix. Its cache is as long as the target's, with the small model's layers.
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
from eagle_jax.models.lm import LM, causal
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class DraftModelState:
    """The state of the small model.

    Attributes:
        cache: its K/V; those of the root are stored after the committed tokens and not counted in the length.
        hidden: its final hidden state at the root.
    """

    cache: Cache
    hidden: Float[Array, "b h"]


@pytree
class DraftModel(Drafter):
    """Drafts with a small model over the tree that `policy` grows.

    Attributes:
        model: the small model, with the token ids of the target.
        policy: which nodes to expand and which to keep.
        coupled: see `Eagle`.
    """

    model: LM
    policy: TreePolicy = static()
    coupled: bool = static(default=True)

    taps = ()

    def __post_init__(self):
        check_width(self.policy, self.model.config.vocab_size)
        if self.model.config.delta_net is not None or self.model.config.latent is not None:
            raise ValueError(
                "the draft model has recurrent layers or latent attention, which do not draft level by level here; "
                "expected one with keys and values in all layers"
            )

    @property
    def shape(self) -> TreeShape:
        return self.policy

    def init(self, target: Target, batch: int, slots: int) -> DraftModelState:
        if self.model.config.vocab_size > target.config.vocab_size:
            raise ValueError(
                f"the draft model has {self.model.config.vocab_size} tokens and the target {target.config.vocab_size}; "
                "expected no more than the target has, and the same ones"
            )
        hidden = jnp.zeros((batch, self.model.config.hidden_size), self.model.activations)
        return DraftModelState(cache=self.model.empty_cache(batch, slots + 1), hidden=hidden)

    def observe(self, target: Target, state: DraftModelState, observed: CommittedRows) -> DraftModelState:
        """Processes the rows and the next root after them, which is processed again with the next rows."""
        tokens = jnp.concatenate([observed.tokens[:, :1], jnp.maximum(observed.following, 0)], axis=1)
        tokens = jnp.minimum(tokens, self.model.config.vocab_size - 1)
        steps, chain = causal(*tokens.shape)
        with jax.named_scope("draft_observe"):
            output = self.model.forward(tokens, observed.start[:, None] + steps, chain, state.cache)
        return DraftModelState(
            cache=state.cache.write(output.kv, observed.start, state.cache.length + observed.count),
            hidden=observed.last(output.hidden[:, 1:], state.hidden),
        )

    def propose(
        self, target: Target, state: DraftModelState, view: View, mode: Sampling
    ) -> tuple[Tree, DraftModelState]:
        draft_cache = dataclasses.replace(state.cache, length=state.cache.length + 1)

        def drafted_part(values: Float[Array, "b _ v"]) -> Float[Array, "b _ d"]:
            return values[..., : self.model.config.vocab_size]

        def scores(logits: Float[Array, "b f d"], depth: int) -> Scores:
            return ranking.scores(logits, depth, view, mode, self.coupled, drafted_part=drafted_part)

        def run(tokens, features, positions, above, draft_kv, draft_positions):
            output = self.model.forward(tokens, positions, above, draft_cache, (), draft_kv, draft_positions)
            return output.hidden, output.kv, self.model.logits(output.hidden)

        def extend(
            branches: Branches, level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
        ) -> tuple[Scores, Branches]:
            branches, logits = branches.grow(run, view.length + level, tokens, parent_row)
            return scores(logits, level), branches

        with jax.named_scope("draft_tree"):
            first = scores(self.model.logits(state.hidden[:, None]), 0)[:, 0]
            tree = guided.grow(
                self.policy, view, first, extend, Branches.at_root(state.hidden), drafted_part=drafted_part
            )
        return tree, state
