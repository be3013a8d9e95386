"""Medusa drafting (Cai et al. 2024, arXiv:2401.10774): head k guesses the token k + 1 places below the root.

Every head reads the target's final hidden state before the root and nothing else, so all nodes of one depth get the
same candidates, regardless of what was drafted above them. Published Medusa accepts by a threshold (typical
acceptance), which changes the distribution at temperature > 0; here the target draws, as for every drafter.

Cost of one step: one row through one head per level, each with an output matrix; no cache and no layer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.decoding.policy import StaticTree, TreePolicy, check_width
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters import guided, ranking
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.models.heads import Medusa
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


def _published_tree() -> StaticTree:
    children = {"": 10, "0": 10, "1": 7, "2": 3, "3": 2, **dict.fromkeys("456789", 1)}
    children |= {"00": 10, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1, "10": 2, "20": 1, "000": 2}
    paths = [""]
    for path in paths:  # grows while it is iterated, level by level
        paths += [f"{path}{rank}" for rank in range(children.get(path, 0))]
    return StaticTree((-1, *(paths.index(path[:-1]) for path in paths[1:])))


MEDUSA_TREE = _published_tree()
"""The tree of the published Medusa and Hydra runs (`mc_sim_7b_63`): 63 drafted nodes and the root, depth 4."""


@pytree
class MedusaState:
    """The target's final hidden state at the last token before the root."""

    hidden: Float[Array, "b h"]


@pytree
class MedusaDrafter(Drafter):
    """Drafts with Medusa heads over the tree that `policy` grows.

    Attributes:
        head: the heads.
        policy: which nodes to expand and which to keep; at most as deep as the number of heads.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with.
    """

    head: Medusa
    policy: TreePolicy = static()
    coupled: bool = static(default=True)

    taps = ()

    def __post_init__(self):
        ranking.check_depth(self.policy.depth, self.head.num_drafted, "Medusa")
        check_width(self.policy, self.head.config.vocab_size)

    @property
    def shape(self) -> TreePolicy:
        return self.policy

    def init(self, target: Target, batch: int, slots: int) -> MedusaState:
        return MedusaState(hidden=jnp.zeros((batch, self.head.config.hidden_size), target.activations))

    def observe(self, target: Target, state: MedusaState, observed: CommittedRows) -> MedusaState:
        return MedusaState(hidden=observed.last(observed.hidden, state.hidden))

    def propose(self, target: Target, state: MedusaState, view: View, mode: Sampling) -> tuple[Tree, MedusaState]:
        def scores(depth: int) -> Scores:
            return ranking.scores(self.head.logits(depth, state.hidden[:, None]), depth, view, mode, self.coupled)

        with jax.named_scope("draft_tree"):
            return guided.grow_by_depth(self.policy, view, scores), state
