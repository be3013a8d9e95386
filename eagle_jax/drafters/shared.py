"""A drafter whose trees share the nodes of a step."""

from eagle_jax.drafters.base import Wrapper
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.struct import pytree, static


@pytree
class Shared(Wrapper):
    """Drafts as another drafter does; of all nodes that it drafts in a step for a batch the target reads the best.

    Attributes:
        nodes: nodes that the target reads, over all requests; at least one for each.
    """

    nodes: int = static()

    def __post_init__(self):
        if isinstance(self.drafter, Lookahead):
            raise ValueError("Lookahead needs what is drawn at every node of its trees, so they cannot share a step's")

    @property
    def budget(self) -> int:
        return self.nodes
