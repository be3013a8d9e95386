"""Lines of text that begin alike, as one tree."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.tree import Tree
from eagle_jax.struct import pytree


@pytree
class Trie:
    """A node for every token of `s` lines of `d` tokens, depth by depth: node `i * s + j` is token i of line j.

    Of nodes that are the same, the one of the first line stands for all.

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
        alike = jnp.cumprod(equal, axis=3).astype(bool)  # [b s s d]: line and line are the same up to depth d
        index = jnp.arange(count, dtype=jnp.int32)
        first = jnp.min(jnp.where(alike, index[None, None, :, None], count), axis=2)
        through = jnp.where(first == index[None, :, None], jnp.sum(alike, axis=2, dtype=jnp.int32), 0)
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
        """All of it, below `root`."""
        top = jnp.zeros_like(root[:, None])
        return Tree(
            tokens=jnp.concatenate([root[:, None], self.tokens], axis=1),
            parent=jnp.concatenate([top - 1, self.parents + 1], axis=1),
            valid=jnp.concatenate([top == 0, self.lines > 0], axis=1),
            height=height,
        )
