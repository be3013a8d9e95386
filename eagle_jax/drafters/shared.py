"""A drafter whose trees share the nodes of a step."""

from typing import Any

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class Shared(Drafter):
    """Drafts as another drafter does; of all nodes that it drafts in a step for a batch the target reads the best.

    Attributes:
        drafter: the other one.
        nodes: that the target reads, of all requests together; at least one for each.
    """

    drafter: Drafter
    nodes: int = static()

    def __post_init__(self):
        if isinstance(self.drafter, Lookahead):
            raise ValueError("Lookahead needs what is drawn at every node of its trees, so they cannot share a step's")

    @property
    def budget(self) -> int:
        return self.nodes

    @property
    def shape(self) -> TreeShape:
        return self.drafter.shape

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def init(self, target: Target, batch: int, slots: int) -> Any:
        return self.drafter.init(target, batch, slots)

    def observe(self, target: Target, state: Any, observed: CommittedRows) -> Any:
        return self.drafter.observe(target, state, observed)

    def propose(self, target: Target, state: Any, view: View, mode: Sampling) -> tuple[Tree, Any]:
        return self.drafter.propose(target, state, view, mode)
