"""Rows of one batch put into places of another."""

import dataclasses
import functools
from typing import Any

import jax
from jaxtyping import Array, Int

from eagle_jax.decoding.state import BatchParams, DecodeState
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.workarounds import loop_options

Running = tuple[BatchParams, DecodeState]


def insert(batch: Running, new: Running, places: Int[Array, " n"], *, sharding: Sharding | None = None) -> Running:
    """`batch` with the rows of `new` at `places`; of several rows for one place the first counts.

    The number of steps is kept as it is.
    """
    new_params, new_state = dataclasses.replace(new[0], processor=None), new[1]
    new_state = dataclasses.replace(new_state, steps=batch[1].steps)

    def put_row(back: Int[Array, ""], batch: Running) -> Running:
        row = len(places) - 1 - back
        params, state = batch
        state = jax.tree.map(lambda old, new: _put(old, new, row, places[row]) if old.ndim else old, state, new_state)
        return jax.tree.map(lambda old, new: _put(old, new, row, places[row]), params, new_params), state

    return jax.lax.fori_loop(0, len(places), put_row, batch)


@jax.jit
def _put(old: Array, new: Array, row: Int[Array, ""], place: Int[Array, ""]) -> Array:
    """`old` with one row of `new` at `place`; a function of its own in a program, for all arrays of a shape."""
    one = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
    return jax.lax.dynamic_update_slice_in_dim(old, one, place, axis=0)


@functools.cache
def compiled_insert() -> Any:
    """`insert`, jitted once per process. The batch is donated: its caches are written in place."""
    return jax.jit(sharded(insert), donate_argnums=0, static_argnames="sharding", compiler_options=loop_options())
