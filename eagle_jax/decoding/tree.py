"""The draft tree: guessed continuations of a text that share their prefixes."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from eagle_jax.struct import pytree, static

MAX_ELEMENTWISE_NODES = 16  # up to so many nodes matrix products are written as elementwise operations


@dataclasses.dataclass(frozen=True)
class TreeShape:
    """The size of a drafter's trees. Static: hashable, known at compile time.

    Attributes:
        nodes: nodes of every tree, root included; rows of the target's forward pass.
        depth: maximum depth of a drafted node.
    """

    nodes: int
    depth: int


@pytree
class Tree:
    """Guessed tokens as a tree of fixed shape, one tree per batch row (b batch, n nodes).

    Node 0 is the root: the last drawn token, not yet processed by the target. Parents come before their children, and
    nodes below an invalid node are invalid. Siblings should have distinct tokens, since the target accepts only one of
    equal siblings. Depth and the attention mask follow from `parent`:

        parent     tree           depth    ancestors (row i: what node i attends to)

         -1        0                0        1 . . . . .
          0        +- 1             1        1 1 . . . .
          0        +- 2             1        1 . 1 . . .
          1        |  +- 3          2        1 1 . 1 . .
          2        |     4 (of 2)   2        1 . 1 . 1 .
          3        +- 5 (of 3)      3        1 1 . 1 . 1

    An invalid node is padding: it attends to itself only, its depth is 0, and it is never accepted.

    Attributes:
        tokens: token of each node.
        parent: index of each node's parent; -1 for node 0, `parent[j] < j` for the others.
        valid: whether the node is a guess; node 0 always is.
        scores: the drafter's log-probability of each node's path, at most that of its parent; None if the drafter has
            none.
        edges: the drafter's log-probability of each node's token, given its parent; None if the drafter has none.
            Calibrated scores are not sums of these.
        height: static bound of the depth, which saves work in `ancestors`; None means n - 1.
    """

    tokens: Int[Array, "b n"]
    parent: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    scores: Float[Array, "b n"] | None = None
    edges: Float[Array, "b n"] | None = None
    height: int | None = static(default=None)

    @staticmethod
    def root_only(root: Int[Array, "b"], height: int = 0) -> "Tree":
        """Returns the tree of the root alone."""
        tokens = root[:, None]
        return Tree(tokens=tokens, parent=jnp.full_like(tokens, -1), valid=jnp.ones_like(tokens, bool), height=height)

    @staticmethod
    def chain(root: Int[Array, "b"], tokens: Int[Array, "b c"], valid: Bool[Array, "b c"]) -> "Tree":
        """Returns the chain of `tokens` below the root, up to the first token that is not `valid`."""
        count = tokens.shape[1]
        below = jnp.cumprod(valid, axis=1, dtype=jnp.int32) > 0
        return Tree(
            tokens=jnp.concatenate([root[:, None], tokens], axis=1),
            parent=jnp.broadcast_to(jnp.arange(-1, count, dtype=jnp.int32)[None], (len(root), count + 1)),
            valid=jnp.concatenate([jnp.ones_like(root, bool)[:, None], below], axis=1),
            height=count,
        )

    @property
    def ancestors(self) -> Bool[Array, "b n n"]:
        """Row i marks node i and everything above it: the transitive closure of `parent`.

        Each squaring doubles the reach of the relation, so it takes log2(height) boolean matrix products: three for the
        default tree of 60 nodes, 30 microseconds on a CPU core. Small ones are elementwise operations: on a CPU,
        starting a product takes longer than all of them.
        """
        nodes = self.parent.shape[1]
        index = jnp.arange(nodes, dtype=self.parent.dtype)
        edge = (self.parent[:, :, None] == index[None, None, :]) & self.valid[:, :, None]
        reach = edge | (index[None, :, None] == index[None, None, :])
        for _ in range(_doublings(nodes - 1 if self.height is None else self.height)):
            if nodes <= MAX_ELEMENTWISE_NODES:
                reach = jnp.any(reach[:, :, :, None] & reach[:, None, :, :], axis=2)
            else:
                ones = reach.astype(jnp.float32)
                reach = jnp.einsum("bij,bjk->bik", ones, ones) > 0.5
        return reach


def depth_below(ancestors: Bool[Array, "b n n"]) -> Int[Array, "b n"]:
    """Returns the depth of each node: the row sums of a tree's `ancestors`, minus 1."""
    return jnp.sum(ancestors, axis=-1, dtype=jnp.int32) - 1


def _doublings(height: int) -> int:
    """Returns the squarings after which a relation of reach 1 has reach `height`: 0 for 0 and 1, 3 for 8."""
    return max(height - 1, 0).bit_length()
