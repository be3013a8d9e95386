"""Grafts the branches of a retrieval drafter on the tree of a head (SAM-Decoding, Hu et al. 2024, arXiv:2411.10666).

A head guesses likely tokens, retrieval repeats earlier text. One forward pass verifies both, so there is no choice to
make, and a node that both guess is verified once.

Cost of one step: that of both drafters, and a comparison of all nodes of one tree with all nodes of the other.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, Verification, View
from eagle_jax.drafters.trie import graft
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree


@pytree
class HybridState:
    """Both drafters' states, and the last tree of the second drafter.

    Attributes:
        tokens, parent, valid: the second drafter's tree.
        place: index of its nodes in the grafted tree.
    """

    first: Any
    second: Any
    tokens: Int[Array, "b m"]
    parent: Int[Array, "b m"]
    valid: Bool[Array, "b m"]
    place: Int[Array, "b m"]


@pytree
class Hybrid(Drafter):
    """Drafts the first drafter's tree with the second's grafted on. Each observes its own tree alone.

    Attributes:
        first, second: any drafters.
    """

    first: Drafter
    second: Drafter

    @property
    def shape(self) -> TreeShape:
        first, second = self.first.shape, self.second.shape
        return TreeShape(nodes=first.nodes + second.nodes - 1, depth=max(first.depth, second.depth))

    @property
    def taps(self) -> tuple[int, ...]:
        return (*self.first.taps, *self.second.taps)

    @property
    def reads_logits(self) -> bool:
        return self.first.reads_logits or self.second.reads_logits

    def init(self, target: Target, batch: int, slots: int) -> HybridState:
        zeros = jnp.zeros((batch, self.second.shape.nodes), jnp.int32)
        return HybridState(
            first=self.first.init(target, batch, slots),
            second=self.second.init(target, batch, slots),
            tokens=zeros,
            parent=zeros - 1,
            valid=zeros > 0,
            place=zeros,
        )

    def observe(self, target: Target, state: HybridState, observed: CommittedRows) -> HybridState:
        taps, cut, checked = observed.taps, len(self.first.taps), observed.checked
        for_first = dataclasses.replace(observed, taps=taps[:cut], checked=checked and self._first_part(checked))
        for_second = dataclasses.replace(observed, taps=taps[cut:], checked=checked and _second_part(checked, state))
        return dataclasses.replace(
            state,
            first=self.first.observe(target, state.first, for_first),
            second=self.second.observe(target, state.second, for_second),
        )

    def propose(self, target: Target, state: HybridState, view: View, mode: Sampling) -> tuple[Tree, HybridState]:
        first_tree, first = self.first.propose(target, state.first, view, mode)
        second_tree, second = self.second.propose(target, state.second, view, mode)
        with jax.named_scope("graft"):
            tree, place = graft(first_tree, second_tree)
        return tree, HybridState(first, second, second_tree.tokens, second_tree.parent, second_tree.valid, place)

    def _first_part(self, checked: Verification) -> Verification:
        """Returns the verification of the first drafter's tree, the leading nodes of the grafted tree."""
        nodes, tree = self.first.shape.nodes, checked.tree
        first_tree = Tree(
            tokens=tree.tokens[:, :nodes],
            parent=tree.parent[:, :nodes],
            valid=tree.valid[:, :nodes],
            edges=None if tree.edges is None else tree.edges[:, :nodes],
        )
        return Verification(tree=first_tree, logits=checked.logits[:, :nodes], draws=checked.draws[:, :nodes])


def _second_part(checked: Verification, state: HybridState) -> Verification:
    """Returns the verification of the second drafter's tree, gathered from the grafted tree."""
    is_verified = jnp.take_along_axis(checked.tree.valid, state.place, axis=1)
    return Verification(
        tree=Tree(tokens=state.tokens, parent=state.parent, valid=state.valid & is_verified),
        logits=jnp.take_along_axis(checked.logits, state.place[:, :, None], axis=1),
        draws=jnp.take_along_axis(checked.draws, state.place, axis=1),
    )
