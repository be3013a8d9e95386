"""Copies rows of one batch to rows of another."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models.cache import KVState, is_full_length_cache
from eagle_jax.sharding import Sharding, sharded

Running = tuple[BatchParams, DecodeState]

BLOCK = 256  # slots of a cache that are copied at a time


def insert(batch: Running, new: Running, target_rows: Int[Array, " n"], *, sharding: Sharding | None = None) -> Running:
    """Returns `batch` with the rows of `new` at `target_rows`; of several rows with the same target, the first is used.

    The number of steps is kept as it is.
    """
    new_params, new_state = _without_counts(new, batch)

    def put_row(back: Int[Array, ""], batch: Running) -> Running:
        row = len(target_rows) - 1 - back
        params, state = batch
        target = target_rows[row]
        state = jax.tree.map(lambda old, new: _put(old, new, row, target) if old.ndim else old, state, new_state)
        return jax.tree.map(lambda old, new: _put(old, new, row, target), params, new_params), state

    return jax.lax.fori_loop(0, len(target_rows), put_row, batch)


def insert_one(batch: Running, new: Running, target_row: Int[Array, ""], copies_all: Bool[Array, ""]) -> Running:
    """Returns `batch` with the only row of `new` at `target_row`; used slots of its caches are copied in blocks.

    Args:
        copies_all: copies caches to their end: a failed request may have left NaN there, which masks do not hide
            everywhere.
    """
    new_params, new_state = _without_counts(new, batch)
    row, slots = jnp.zeros((), jnp.int32), new_state.cache.slots

    def is_cache(node: Any) -> bool:
        return is_full_length_cache(node, slots)

    old_nodes, structure = jax.tree.flatten(batch[1], is_leaf=is_cache)
    pairs = list(zip(old_nodes, jax.tree.leaves(new_state, is_leaf=is_cache), strict=True))
    caches = [(old, new) for old, new in pairs if is_cache(old)]
    num_slots = jnp.where(copies_all, slots, new_state.cache.length[0])
    old_kv, new_kv = ([node.kv for node in nodes] for nodes in zip(*caches, strict=True))
    with_slots = iter(jax.tree.leaves(_put_slots(old_kv, new_kv, target_row, num_slots), is_leaf=_is_kv))

    def put(old: Any, new: Any) -> Any:
        if is_cache(old):
            return jax.tree.map(put, old, new, is_leaf=_is_kv)
        if _is_kv(old):
            return next(with_slots)
        return _put(old, new, row, target_row) if old.ndim else old

    state = jax.tree.unflatten(structure, [put(old, new) for old, new in pairs])
    return jax.tree.map(lambda old, new: _put(old, new, row, target_row), batch[0], new_params), state


def _is_kv(node: Any) -> bool:
    return isinstance(node, KVState)


def _without_counts(new: Running, batch: Running) -> Running:
    """Returns the parts of a state that are inserted: the batch has its own logits tables and step counter."""
    return dataclasses.replace(new[0], processor=None), dataclasses.replace(new[1], steps=batch[1].steps)


def _put_slots(old: Any, new: Any, target_row: Int[Array, ""], num_slots: Int[Array, ""]) -> Any:
    """Writes the first `num_slots` slots of the K/V in `new`, rounded up to whole blocks, to row `target_row`."""

    def put_block(index: Int[Array, ""], old: Any) -> Any:
        return jax.tree.map(lambda old, new: _put_block(old, new, target_row, index * BLOCK, BLOCK), old, new)

    return jax.lax.fori_loop(0, -(-num_slots // BLOCK), put_block, old)


# Functions of their own in a program, for all arrays of a shape.
@jax.jit
def _put(old: Array, new: Array, row: Int[Array, ""], target_row: Int[Array, ""]) -> Array:
    """Returns `old` with one row of `new` at `target_row`."""
    row_values = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
    return jax.lax.dynamic_update_slice_in_dim(old, row_values, target_row, axis=0)


@functools.partial(jax.jit, static_argnames="block_size")
def _put_block(old: Array, new: Array, target_row: Int[Array, ""], start: Int[Array, ""], block_size: int) -> Array:
    """Returns `old` with `block_size` slots of the first row of `new`; the last block may begin earlier."""
    _, heads, slots, size = new.shape
    block = jax.lax.dynamic_slice(new, (0, 0, start, 0), (1, heads, min(block_size, slots), size))
    return jax.lax.dynamic_update_slice(old, block, (target_row, 0, start, 0))


compiled_insert = functools.partial(compiled, sharded(insert), static="sharding", donated="batch")
