"""Divides the nodes of a step among its requests by their scores."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from eagle_jax.decoding.tree import Tree


def within(tree: Tree, budget: int, done: Bool[Array, "b"]) -> Tree:
    """Returns the trees of a batch with the `budget` best nodes of all of them, each with its ancestors.

    Every unfinished request keeps its root. A node's score is the probability of its path, which is the share of
    steps in which the node adds a token. Finished requests keep no node.

    Args:
        tree: the trees; without scores, earlier nodes of a tree rank higher.
        budget: nodes of all trees together; at least one for each request.

    Raises:
        ValueError: there are more requests than nodes.
    """
    batch, nodes = tree.tokens.shape
    if budget < batch:
        raise ValueError(f"{budget} nodes for the trees of {batch} requests, which have a root each; share more nodes")
    scores = worth(tree)
    scores = jnp.where(jnp.arange(nodes)[None] == 0, jnp.inf, scores)
    scores = jnp.where(tree.valid & ~done[:, None], scores, -jnp.inf)
    if batch * nodes <= budget:
        is_selected = scores > -jnp.inf
    else:
        best, place = jax.lax.top_k(scores.reshape(-1), budget)  # of equal scores the earlier, so parents come first
        is_selected = jnp.zeros(batch * nodes, bool).at[place].set(best > -jnp.inf).reshape(scores.shape)
    return dataclasses.replace(tree, valid=is_selected)


def worth(tree: Tree) -> Float[Array, "b n"]:
    """Returns scores that rank nodes; a parent's score is never below its child's."""
    if tree.scores is not None:
        return jnp.where(jnp.isnan(tree.scores), -jnp.inf, tree.scores)
    return -jnp.broadcast_to(jnp.arange(tree.tokens.shape[1], dtype=jnp.float32), tree.tokens.shape)
