"""Lets a drafter read the tokens that were committed while it paused."""

import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle_jax.drafters.base import CommittedRows
from eagle_jax.drafters.paused import Ready, Unread
from eagle_jax.loop.active import state_at, with_rows
from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.state import DecodeState
from eagle_jax.models.target import Target
from eagle_jax.sharding import sharded


def catch_up(target: Target, drafter: Ready, state: DecodeState, rows: Int[Array, "a"]) -> DecodeState:
    """Returns the state after the drafter has read all unread rows of these requests."""
    part = state_at(state, rows)
    unread: Unread = part.draft
    # Without unread rows, padding is written after the root's slot, where nothing is read.
    start = jnp.where(unread.count > 0, unread.start, part.length + 1)
    rows_read = start, unread.count, unread.tokens, unread.following, unread.hidden, unread.taps
    read = drafter.drafter.observe(target, unread.state, CommittedRows(*rows_read))
    draft = dataclasses.replace(unread, state=read, count=jnp.zeros_like(unread.count))
    return with_rows(state, dataclasses.replace(part, draft=draft), rows)


compiled_catch_up = functools.partial(compiled, sharded(catch_up), donated="state")
