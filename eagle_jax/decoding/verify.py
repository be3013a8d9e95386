"""Verification: follow the target's draws down the draft tree."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int

from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.struct import pytree


@pytree
class Accepted:
    """The path that one step commits (b batch, p = depth + 1 the longest a path may be).

    The first `count` columns are the path, the root first; the columns after it are padding: node 0, draw -1.

    Attributes:
        nodes: indices of the accepted nodes; column i holds the node at depth i.
        draws: the token that the target drew after each of those nodes; the last of them is the next root.
        count: accepted nodes, root included: 1 to p. It is also the number of tokens that the step adds.
    """

    nodes: Int[Array, "b p"]
    draws: Int[Array, "b p"]
    count: Int[Array, "b"]


def walk(tree: Tree, draws: Int[Array, "b n"], depth: int, ancestors: Bool[Array, "b n n"] | None = None) -> Accepted:
    """Starts at the root and moves to the child that holds the token drawn at the current node, until no child does.

    Written without a loop: a node is on the path if it and everything between it and the root holds the token that was
    drawn at its parent. Nothing is compared but tokens, so this is greedy and sampled verification for every drafter;
    it is lossless because every committed token is a draw below a committed prefix.

    Args:
        draws: the token that the target draws after every node.
        depth: no node is deeper than this; the path has room for depth + 1 nodes.
        ancestors: the tree's, if they are known.
    """
    ancestors = tree.ancestors if ancestors is None else ancestors
    drawn_above = jnp.take_along_axis(draws, jnp.maximum(tree.parent, 0), axis=1)
    is_root = tree.parent < 0
    fits = is_root | (tree.valid & (tree.tokens == drawn_above))
    on_path = ~jnp.any(ancestors & ~fits[:, None, :], axis=-1)

    levels = jnp.arange(depth + 1, dtype=jnp.int32)
    at_level = on_path[:, None, :] & (depth_below(ancestors)[:, None, :] == levels[None, :, None])
    is_accepted = jnp.any(at_level, axis=-1)
    nodes = lax.argmax(at_level, 2, jnp.int32)  # the first True, 0 where there is none
    following = jnp.where(is_accepted, jnp.take_along_axis(draws, nodes, axis=1), -1)
    return Accepted(nodes=nodes, draws=following, count=jnp.sum(is_accepted, axis=-1, dtype=jnp.int32))
