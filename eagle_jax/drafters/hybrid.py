"""Two drafters, one tree: retrieved branches beside those of a head (SAM-Decoding, Hu et al. 2024, arXiv:2411.10666).

A head guesses what is likely, retrieval what was said before. Both are checked by the same pass, so neither has to be
chosen, and what both guess is checked once.

Cost of one cycle: both drafters', and a comparison of all nodes of one tree with all of the other.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import Drafter, Observed, View
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree


@pytree
class Hybrid(Drafter):
    """The first drafter's tree with the second's grafted on.

    Attributes:
        first, second: any drafters.
    """

    first: Drafter
    second: Drafter

    @property
    def shape(self) -> TreeShape:
        one, other = self.first.shape, self.second.shape
        return TreeShape(nodes=one.nodes + other.nodes - 1, depth=max(one.depth, other.depth))

    @property
    def taps(self) -> tuple[int, ...]:
        return (*self.first.taps, *self.second.taps)

    def init(self, target: Target, batch: int, slots: int) -> tuple[Any, Any]:
        return self.first.init(target, batch, slots), self.second.init(target, batch, slots)

    def observe(self, target: Target, state: tuple[Any, Any], observed: Observed) -> tuple[Any, Any]:
        mine, cut = observed.taps, len(self.first.taps)
        return (
            self.first.observe(target, state[0], dataclasses.replace(observed, taps=mine[:cut])),
            self.second.observe(target, state[1], dataclasses.replace(observed, taps=mine[cut:])),
        )

    def propose(
        self, target: Target, state: tuple[Any, Any], view: View, mode: Sampling
    ) -> tuple[Tree, tuple[Any, Any]]:
        one, first = self.first.propose(target, state[0], view, mode)
        other, second = self.second.propose(target, state[1], view, mode)
        with jax.named_scope("graft"):
            return graft(one, other), (first, second)


def graft(tree: Tree, other: Tree) -> Tree:
    """`tree`, followed by the nodes of `other` below the root; those that `tree` has already are invalid.

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
    own = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32)[None] + (size - 1), (batch, nodes))
    place, found = own.at[:, 0].set(0), jnp.zeros((batch, nodes), bool)
    for _ in range(height):  # after round d the nodes of depth d are in place
        parent = jnp.take_along_axis(place, jnp.maximum(other.parent, 0), axis=1)
        same = _same(tree, other, parent)
        found = jnp.any(same, axis=2)
        place = jnp.where(found, jax.lax.argmax(same, 2, jnp.int32), own).at[:, 0].set(0)

    parent = jnp.take_along_axis(place, jnp.maximum(other.parent, 0), axis=1)
    return Tree(
        tokens=jnp.concatenate([tree.tokens, other.tokens[:, 1:]], axis=1),
        parent=jnp.concatenate([tree.parent, parent[:, 1:]], axis=1),
        valid=jnp.concatenate([tree.valid, (other.valid & ~found)[:, 1:]], axis=1),
        height=None if tree.height is None else max(tree.height, height),
    )


def _same(tree: Tree, other: Tree, parent: Int[Array, "b m"]) -> Bool[Array, "b m n"]:
    """Which node of `tree` each node of `other` is, given where the parents of `other`'s nodes are."""
    below = tree.parent[:, None, :] == parent[:, :, None]
    tokens = tree.tokens[:, None, :] == other.tokens[:, :, None]
    return below & tokens & (tree.valid[:, None, :] & other.valid[:, :, None])
