"""Reading the tokens that were committed while a drafter paused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from eagle_jax.decoding.active import state_at, with_rows
from eagle_jax.decoding.state import DecodeState
from eagle_jax.drafters.base import CommittedRows
from eagle_jax.drafters.paused import Ready, Unread
from eagle_jax.models.target import Target
from eagle_jax.sharding import sharded
from eagle_jax.workarounds import loop_options


def catch_up(target: Target, drafter: Ready, state: DecodeState, rows: Int[Array, "a"]) -> DecodeState:
    """The state in which the drafter has read all rows of some requests."""
    part = state_at(state, rows)
    unread: Unread = part.draft
    # Of a request without unread rows padding is written beyond all that is read, the root's slot included.
    start = jnp.where(unread.count > 0, unread.start, part.length + 1)
    rows_read = unread.tokens, unread.following, unread.hidden, unread.taps
    # Of all rows but the last only what stays in caches is needed, as of a prompt's.
    before = jnp.maximum(unread.count - 1, 0)
    most = CommittedRows(start, before, *rows_read, is_prefill_chunk=True)
    last = jax.tree.map(lambda rows: _row_at(rows, before), rows_read)
    read = drafter.drafter.observe(target, unread.state, most)
    read = drafter.drafter.observe(target, read, CommittedRows(start + before, unread.count - before, *last))
    draft = dataclasses.replace(unread, state=read, count=jnp.zeros_like(unread.count))
    return with_rows(state, dataclasses.replace(part, draft=draft), rows)


def _row_at(rows: Shaped[Array, "a w ..."], index: Int[Array, "a"]) -> Shaped[Array, "a 1 ..."]:
    """One of the rows of each request."""
    return jax.vmap(lambda line, at: jax.lax.dynamic_slice_in_dim(line, at, 1))(rows, index)


@functools.cache
def compiled_catch_up() -> Any:
    """`catch_up`, jitted once per process. The state is donated: the caches are updated in place."""
    return jax.jit(sharded(catch_up), donate_argnames=("state",), compiler_options=loop_options())
