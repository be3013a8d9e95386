"""Reading what was said while a drafter paused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle_jax.decoding.active import state_at, with_rows
from eagle_jax.decoding.state import DecodeState
from eagle_jax.drafters.base import CommittedRows
from eagle_jax.drafters.paused import Ready, Unread
from eagle_jax.models.target import Target
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.workarounds import loop_options


def catch_up(
    target: Target, drafter: Ready, state: DecodeState, rows: Int[Array, "a"], *, sharding: Sharding | None = None
) -> DecodeState:
    """The state in which the drafter has read all rows of some requests."""
    part = state_at(state, rows)
    unread: Unread = part.draft
    start = jnp.where(unread.count > 0, unread.start, part.length)  # what is written of no rows is not to be read
    kept = start, unread.count, unread.tokens, unread.following, unread.hidden, unread.taps
    read = drafter.drafter.observe(target, unread.state, CommittedRows(*kept))
    draft = dataclasses.replace(unread, state=read, count=jnp.zeros_like(unread.count))
    return with_rows(state, dataclasses.replace(part, draft=draft), rows)


@functools.cache
def compiled_catch_up() -> Any:
    """`catch_up`, jitted once per process. The state is donated: the caches are updated in place."""
    options = loop_options()
    return jax.jit(sharded(catch_up), static_argnames="sharding", donate_argnames=("state",), compiler_options=options)
