"""Plain decoding with a drafter that can resume: it processes the text later, many rows at a time.

A pass of the head in every step of plain decoding would cost several per cent. `Paused` stores the rows of up to `room`
steps, and `loop.catch_up` processes them together: when the store is full, and before `Ready` drafts.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.policy import NO_TREE
from eagle_jax.decoding.rows import append
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, View, Wrapper
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class Unread:
    """A drafter's state, and the rows that it has not processed yet (at most w).

    Attributes:
        state: the drafter's state before these rows.
        start, count: position of the first row, and the number of rows.
        tokens, following, hidden, taps: see `CommittedRows`.
    """

    state: Any
    start: Int[Array, "b"]
    count: Int[Array, "b"]
    tokens: Int[Array, "b w"]
    following: Int[Array, "b w"]
    hidden: Float[Array, "b w h"]
    taps: tuple[Float[Array, "b w h"], ...]


@pytree
class Ready(Wrapper):
    """Drafts with another drafter. Its state has room for the rows of `Paused`, which `catch_up` must process first.

    Attributes:
        room: maximum number of unread rows.
    """

    room: int = static()

    def init(self, target: Target, batch: int, slots: int) -> Unread:
        none = jnp.zeros((batch, self.room), jnp.int32)
        rows = jnp.zeros((*none.shape, target.config.hidden_size), target.activations)
        state = self.drafter.init(target, batch, slots)
        # separate arrays: a buffer can be donated only once
        taps = tuple(jnp.zeros_like(rows) for _ in self.taps)
        return Unread(state, none[:, 0], jnp.zeros(batch, jnp.int32), none, jnp.zeros_like(none), rows, taps)

    def observe(self, target: Target, state: Unread, observed: CommittedRows) -> Unread:
        return dataclasses.replace(state, state=self.drafter.observe(target, state.state, observed))

    def propose(self, target: Target, state: Unread, view: View, mode: Sampling) -> tuple[Tree, Unread]:
        tree, inner = self.drafter.propose(target, state.state, view, mode)
        return tree, dataclasses.replace(state, state=inner)


@pytree
class Paused(Ready):
    """Proposes the root alone, and stores the rows of at most `room` steps."""

    @property
    def shape(self) -> TreeShape:
        return NO_TREE

    @property
    def budget(self) -> None:
        return None

    def observe(self, target: Target, state: Unread, observed: CommittedRows) -> Unread:
        if observed.checked is None:  # a prompt
            return super().observe(target, state, observed)

        def appended(rows: Array, row: Array) -> Array:
            return append(rows, row, state.count)  # rows that are done write too, but do not count

        return Unread(
            state=state.state,
            start=jnp.where(state.count == 0, observed.start, state.start),
            count=state.count + observed.count,
            tokens=appended(state.tokens, observed.tokens),
            following=appended(state.following, observed.following),
            hidden=appended(state.hidden, observed.hidden),
            taps=tuple(appended(rows, row) for rows, row in zip(state.taps, observed.taps, strict=True)),
        )

    def propose(self, target: Target, state: Unread, view: View, mode: Sampling) -> tuple[Tree, Unread]:
        return Tree.root_only(view.root), state
