"""Lines of text that begin alike, as one tree; and two trees as one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.tree import Tree
from eagle_jax.struct import pytree


@pytree
class Trie:
    """A node for every token of `s` lines of `d` tokens, depth by depth: node `i * s + j` is token i of line j.

    Equal nodes are merged into the node of the first line.

    Attributes:
        tokens: token of each node.
        parents: its parent, -1 for the root.
        lines: how many lines go through it; 0 for nodes that another one stands for, or that no line has.
    """

    tokens: Int[Array, "b c"]
    parents: Int[Array, "b c"]
    lines: Int[Array, "b c"]

    @staticmethod
    def of(lines: Int[Array, "b s d"], valid: Bool[Array, "b s d"]) -> "Trie":
        """Lines end at their first token that is not valid."""
        batch, count, length = lines.shape
        going_on = jnp.cumprod(valid, axis=2).astype(bool)
        equal = (lines[:, :, None] == lines[:, None]) & going_on[:, :, None] & going_on[:, None]
        is_same_prefix = jnp.cumprod(equal, axis=3).astype(bool)  # [b s s d]: line and line are the same up to depth d
        index = jnp.arange(count, dtype=jnp.int32)
        first = jnp.min(jnp.where(is_same_prefix, index[None, None, :, None], count), axis=2)
        through = jnp.where(first == index[None, :, None], jnp.sum(is_same_prefix, axis=2, dtype=jnp.int32), 0)
        above = first[:, :, :-1] + jnp.arange(length - 1, dtype=jnp.int32)[None, None] * count
        parents = jnp.concatenate([jnp.full((batch, count, 1), -1, jnp.int32), above], axis=2)

        def by_depth(values: Int[Array, "b s d"]) -> Int[Array, "b c"]:
            return values.swapaxes(1, 2).reshape(batch, -1)

        # below the end of a line nothing is alike, so `first` is out of range there: those nodes hang at the root
        return Trie(
            tokens=by_depth(lines),
            parents=jnp.where(by_depth(through) > 0, by_depth(parents), -1),
            lines=by_depth(through),
        )

    def tree(self, root: Int[Array, "b"], height: int) -> Tree:
        """Returns the whole trie as a tree, below `root`."""
        top = jnp.zeros_like(root[:, None])
        return Tree(
            tokens=jnp.concatenate([root[:, None], self.tokens], axis=1),
            parent=jnp.concatenate([top - 1, self.parents + 1], axis=1),
            valid=jnp.concatenate([top == 0, self.lines > 0], axis=1),
            height=height,
        )


def graft(tree: Tree, other: Tree) -> tuple[Tree, Int[Array, "b m"]]:
    """Returns `tree`, followed by the nodes of `other` below the root, and where each node of `other` is in it. Those
    that `tree` has already are invalid.

    What hangs below a node that both have hangs below `tree`'s:

        tree      other       grafted

        a         a           a
        +- b      +- b        +- b
           +- c      +- d        +- c
                                 +- d        (other's b is an invalid node)
    """
    batch, size = tree.tokens.shape
    nodes = other.tokens.shape[1]
    height = nodes - 1 if other.height is None else other.height
    appended = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32)[None] + (size - 1), (batch, nodes))
    place, is_shared = appended.at[:, 0].set(0), jnp.zeros((batch, nodes), bool)
    for _ in range(height):  # after round d the nodes of depth d are in place
        parent = jnp.take_along_axis(place, jnp.maximum(other.parent, 0), axis=1)
        same = _same(tree, other, parent)
        is_shared = jnp.any(same, axis=2)
        place = jnp.where(is_shared, jax.lax.argmax(same, 2, jnp.int32), appended).at[:, 0].set(0)

    parent = jnp.take_along_axis(place, jnp.maximum(other.parent, 0), axis=1)
    grafted = Tree(
        tokens=jnp.concatenate([tree.tokens, other.tokens[:, 1:]], axis=1),
        parent=jnp.concatenate([tree.parent, parent[:, 1:]], axis=1),
        valid=jnp.concatenate([tree.valid, (other.valid & ~is_shared)[:, 1:]], axis=1),
        edges=None if tree.edges is None else jnp.pad(tree.edges, ((0, 0), (0, nodes - 1)), constant_values=-jnp.inf),
        height=None if tree.height is None else max(tree.height, height),
    )
    return grafted, place


def _same(tree: Tree, other: Tree, parent: Int[Array, "b m"]) -> Bool[Array, "b m n"]:
    """Returns which node of `tree` each node of `other` is, given where the parents of `other`'s nodes are."""
    below = tree.parent[:, None, :] == parent[:, :, None]
    tokens = tree.tokens[:, None, :] == other.tokens[:, :, None]
    return below & tokens & (tree.valid[:, None, :] & other.valid[:, :, None])
