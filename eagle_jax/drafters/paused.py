"""Plain decoding that keeps a drafter ready: it takes in the text and proposes nothing."""

from typing import Any

from eagle_jax.decoding.policy import NO_TREE
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree


@pytree
class Paused(Drafter):
    """Takes in text as another drafter does, so that this one can go on from the same state, and proposes nothing."""

    drafter: Drafter

    shape = NO_TREE

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def init(self, target: Target, batch: int, slots: int) -> Any:
        return self.drafter.init(target, batch, slots)

    def observe(self, target: Target, state: Any, observed: CommittedRows) -> Any:
        return self.drafter.observe(target, state, observed)

    def propose(self, target: Target, state: Any, view: View, mode: Sampling) -> tuple[Tree, Any]:
        return Tree.root_only(view.root), state
