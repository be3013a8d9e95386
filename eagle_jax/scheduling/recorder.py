"""A drafter that remembers what became of its last tree, so that one can look at it from outside the loop."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.decoding.verify import walk
from eagle_jax.drafters.base import CommittedRows, View, Wrapper
from eagle_jax.models.target import Target
from eagle_jax.requests.results import Step
from eagle_jax.sharding import to_host
from eagle_jax.struct import pytree


@pytree
class Recorded:
    """A drafter's state, and each row's last step, which committed the first `count` nodes of `path`."""

    state: Any
    tokens: Int[Array, "b n"]
    parent: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    draws: Int[Array, "b n"]
    path: Int[Array, "b p"]
    count: Int[Array, "b"]
    scores: Float[Array, "b n"]


@pytree
class Recorder(Wrapper):
    """Drafts with another drafter, and keeps the last tree with the target's draws at its nodes."""

    def init(self, target: Target, batch: int, slots: int) -> Recorded:
        zeros = jnp.zeros((batch, self.shape.nodes), jnp.int32)
        return Recorded(
            state=self.drafter.init(target, batch, slots),
            tokens=zeros,
            parent=zeros,
            valid=zeros > 0,
            draws=zeros,
            path=jnp.zeros((batch, self.shape.depth + 1), jnp.int32),
            count=zeros[:, 0],
            scores=jnp.full(zeros.shape, jnp.nan, jnp.float32),
        )

    def observe(self, target: Target, state: Recorded, observed: CommittedRows) -> Recorded:
        inner = self.drafter.observe(target, state.state, observed)
        if observed.checked is None:
            return dataclasses.replace(state, state=inner)
        tree, draws, count = observed.checked.tree, observed.checked.draws, observed.count
        active = count > 0  # a row that is done keeps its last step until the next poll
        rows = active[:, None]
        return Recorded(
            state=inner,
            tokens=jnp.where(rows, tree.tokens, state.tokens),
            parent=jnp.where(rows, tree.parent, state.parent),
            valid=jnp.where(rows, tree.valid, state.valid),
            draws=jnp.where(rows, draws, state.draws),
            path=jnp.where(rows, walk(tree, draws, self.shape.depth).nodes, state.path),
            count=jnp.where(active, count, state.count),
            scores=jnp.where(rows, _scores(tree), state.scores),
        )

    def propose(self, target: Target, state: Recorded, view: View, mode: Sampling) -> tuple[Tree, Recorded]:
        tree, inner = self.drafter.propose(target, state.state, view, mode)
        return tree, dataclasses.replace(state, state=inner)


def _scores(tree: Tree) -> Float[Array, "b n"]:
    """Returns the tree's scores; nan where it has none."""
    if tree.scores is None:
        return jnp.full(tree.tokens.shape, jnp.nan, jnp.float32)
    return jnp.where(tree.valid, tree.scores, -jnp.inf)


def last_steps(recorded: Recorded) -> list[Step]:
    """Returns the last step of each row; nothing is accepted in the tree of a row that had none."""
    parts = (recorded.tokens, recorded.parent, recorded.valid, recorded.draws, recorded.path, recorded.scores)
    columns = [part.tolist() for part in to_host(parts)]
    counts = to_host(recorded.count).tolist()
    return [
        Step(tokens, parents, valid, draws, path[:count], None if math.isnan(scores[0]) else scores)
        for tokens, parents, valid, draws, path, scores, count in zip(*columns, counts, strict=True)
    ]
