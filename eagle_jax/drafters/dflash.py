"""DFlash drafting (arXiv:2602.06036): one forward pass over a block of mask tokens guesses the whole block.

The head sees the text as keys and values of the target's features (its taps). A slot of the block does not see the
tokens drafted before it, so all nodes of one depth have the same candidates, as with Medusa's heads: the tree grows
from marginals. A chain of each slot's best token is the published DFlash; a head with causal attention and the dynamic
tree is JetSpec (arXiv:2606.18394), which keeps the best nodes by the sum of log-probabilities on their path. With
DSpark's Markov head (arXiv:2607.05147) or DFlash 2's selector a node's children depend on its token (`block_edges`);
both are published with chains.

Cost of one step: keys and values of the accepted rows, and one pass of the head over the block with the output matrix,
for any depth of the tree. Markov head and selector add small products for every level.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.decoding.policy import TreePolicy, check_width
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters import block_edges, guided, marginals, ranking
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.models.cache import Cache
from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.models.target import PADDING_POSITION, Target
from eagle_jax.struct import pytree, static


@pytree
class DFlashDrafter(Drafter):
    """Drafts with a DFlash head over the tree that `policy` grows. Its state is the context's K/V.

    Attributes:
        head: the head.
        policy: which nodes to keep; at most as deep as a block. A shallower tree does not use the block's last slots.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with.
        least_confidence: a path ends before the first node that the confidence head (DSpark) gives a lower probability
            of acceptance; None does not use that head.
    """

    head: DFlash
    policy: TreePolicy = static()
    coupled: bool = static(default=True)
    least_confidence: float | None = static(default=None)

    def __post_init__(self):
        if self.policy.depth > self.head.num_drafted:
            raise ValueError(
                f"a tree of depth {self.policy.depth} for a DFlash head whose block of {self.head.config.block_size} "
                f"drafts {self.head.num_drafted} tokens; choose a tree no deeper than that"
            )
        check_width(self.policy, self.head.draft_vocab_size)
        if self.policy.max_children > self.head.max_children:
            raise ValueError(
                f"the tree asks for the {self.policy.max_children} best tokens below a node, and the head's selector "
                f"has {self.head.max_children} candidates; choose a narrower tree"
            )
        if self.least_confidence is None:
            return
        if self.head.config.confidence is None:
            raise ValueError(
                f"least_confidence={self.least_confidence} for a head without a confidence head; leave it out"
            )
        if not 0 <= self.least_confidence <= 1:
            raise ValueError(f"least_confidence={self.least_confidence}; expected a probability")

    @property
    def shape(self) -> TreeShape:
        return self.policy

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps

    def init(self, target: Target, batch: int, slots: int) -> Cache:
        return self.head.empty_cache(batch, slots, target.activations)

    def observe(self, target: Target, state: Cache, observed: CommittedRows) -> Cache:
        steps = jnp.arange(observed.tokens.shape[1], dtype=jnp.int32)[None]
        positions = jnp.where(steps < observed.count[:, None], observed.start[:, None] + steps, PADDING_POSITION)
        with jax.named_scope("draft_observe"):
            kv = self.head.context(observed.taps, positions, state)
        return state.write(kv, observed.start, state.length + observed.count)

    def propose(self, target: Target, state: Cache, view: View, mode: Sampling) -> tuple[Tree, Cache]:
        with jax.named_scope("draft_block"):
            slots = self.head.draft(target, view.root, view.length, state, self.policy.depth)
        tree = self._grow(view, slots, mode)
        if self.least_confidence is not None:
            tree = block_edges.confident(self.head, slots, tree, self.least_confidence)
        return tree, state

    def _grow(self, view: View, slots: BlockOutput, mode: Sampling) -> Tree:
        def scores(logits: Float[Array, "b f d"], depth: int, part: Callable[[Array], Array]) -> Scores:
            return ranking.scores(logits, depth, view, mode, self.coupled, drafted_part=part)

        markov, selector = self.head.config.markov, self.head.config.selector
        if markov is None and selector is None:
            return marginals.grow(self.head, self.policy, view, slots.logits, mode, self.coupled)
        grow = block_edges.over_candidates if markov is None else block_edges.over_markov
        with jax.named_scope("draft_tree"):
            tree = grow(self.head, self.policy, view, slots, scores)
            return guided.in_target_ids(tree, view.root, self.head.target_ids)
