"""The nodes of a step, shared out among its requests by what each node is worth."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from eagle_jax.decoding.tree import Tree


def within(tree: Tree, budget: int, done: Bool[Array, "b"]) -> Tree:
    """Returns the trees of a batch with the `budget` best nodes of all of them, each with its ancestors.

    Every request that is not done keeps its root. A node is worth the probability of its path: it is the share of
    steps in which the node adds a token. Of requests that are done nothing is left.

    Args:
        tree: with scores; without any, what comes earlier in a tree counts for more.
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
    """Returns the scores of nodes to compare them by; a parent never has less than its child."""
    if tree.scores is not None:
        return jnp.where(jnp.isnan(tree.scores), -jnp.inf, tree.scores)
    return -jnp.broadcast_to(jnp.arange(tree.tokens.shape[1], dtype=jnp.float32), tree.tokens.shape)
