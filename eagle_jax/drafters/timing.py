"""Drafters to measure with: one drafts and verifies nothing, the other verifies a tree that took no drafting."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, Verification, View, Wrapper
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class Drafted:
    """A drafter's state, and the tree that it drafted last."""

    state: Any
    tree: Tree


@pytree
class DraftOnly(Wrapper):
    """Measures the cost of drafting alone: runs a drafter, keeps its tree in the state, and proposes only the root."""

    budget = None

    @property
    def shape(self) -> TreeShape:
        return TreeShape(nodes=1, depth=self.drafter.shape.depth)

    def init(self, target: Target, batch: int, slots: int) -> Drafted:
        nodes = jnp.zeros((batch, self.drafter.shape.nodes), jnp.int32)
        tree = Tree(tokens=nodes, parent=nodes, valid=nodes > 0, height=self.drafter.shape.depth)
        return Drafted(state=self.drafter.init(target, batch, slots), tree=tree)

    def observe(self, target: Target, state: Drafted, observed: CommittedRows) -> Drafted:
        checked = observed.checked and _as_if_checked(state.tree, observed.checked)
        observed = dataclasses.replace(observed, checked=checked)
        return Drafted(state=self.drafter.observe(target, state.state, observed), tree=state.tree)

    def propose(self, target: Target, state: Drafted, view: View, mode: Sampling) -> tuple[Tree, Drafted]:
        tree, inner = self.drafter.propose(target, state.state, view, mode)
        resized = Tree(tokens=tree.tokens, parent=tree.parent, valid=tree.valid, height=self.drafter.shape.depth)
        return Tree.root_only(view.root, self.shape.depth), Drafted(state=inner, tree=resized)


@pytree
class VerifyOnly(Drafter):
    """Measures the cost of verification alone: proposes a constant tree of the same token everywhere, a chain and the
    rest of its nodes below the root.

    Attributes:
        size: nodes and depth of the tree.
    """

    size: TreeShape = static()

    taps = ()

    @property
    def shape(self) -> TreeShape:
        return self.size

    def init(self, target: Target, batch: int, slots: int) -> tuple[()]:
        return ()

    def observe(self, target: Target, state: tuple[()], observed: CommittedRows) -> tuple[()]:
        return ()

    def propose(self, target: Target, state: tuple[()], view: View, mode: Sampling) -> tuple[Tree, tuple[()]]:
        number = np.arange(self.shape.nodes)
        parent = np.where(number <= self.shape.depth, number - 1, 0)
        tokens = jnp.where(number[None] == 0, view.root[:, None], 0)
        shape = tokens.shape
        parents = jnp.broadcast_to(jnp.asarray(parent, jnp.int32), shape)
        return Tree(tokens=tokens, parent=parents, valid=jnp.ones(shape, bool), height=self.shape.depth), ()


def _as_if_checked(tree: Tree, checked: Verification) -> Verification:
    """Returns the drafted tree, with what the target made of its root at every node."""
    nodes = tree.tokens.shape[1]
    logits, draws = (jnp.repeat(rows, nodes, axis=1) for rows in (checked.logits, checked.draws))
    return Verification(tree=tree, logits=logits, draws=draws)
