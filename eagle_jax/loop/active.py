"""Steps for some rows of a batch: the others cost nothing meanwhile.

Everything of a row but its caches is copied, once for all steps of a call; the caches stay where they are, and are read
and written at the rows that take part (`Cache.at_rows`).
"""

import dataclasses
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Int

from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models.cache import Cache

T = TypeVar("T")


def state_at(state: DecodeState, rows: Int[Array, "a"]) -> DecodeState:
    """Returns the state of some rows, distinct ones."""
    return _at(state, rows)


def params_at(params: BatchParams, rows: Int[Array, "a"]) -> BatchParams:
    """Returns the parameters of some rows; `processor` is kept as it is, and has to be that of these rows."""
    return dataclasses.replace(_at(dataclasses.replace(params, processor=None), rows), processor=params.processor)


def with_rows(state: DecodeState, part: DecodeState, rows: Int[Array, "a"]) -> DecodeState:
    """Returns the whole batch's state with some rows replaced by `part`, which steps made of `state_at`'s result."""

    def put(old: Any, new: Any) -> Any:
        if isinstance(old, Cache):
            return dataclasses.replace(old, layers=new.layers, length=old.length.at[rows].set(new.length))
        return old.at[rows].set(new) if old.ndim else new

    return jax.tree.map(put, state, part, is_leaf=_is_cache)


def _at(tree: T, rows: Int[Array, "a"]) -> T:
    """Returns some rows of arrays whose first axis is the batch; scalars are the whole batch's."""

    def take(node: Any) -> Any:
        if isinstance(node, Cache):
            return node.at_rows(rows)
        return node[rows] if node.ndim else node

    return jax.tree.map(take, tree, is_leaf=_is_cache)


def _is_cache(node: Any) -> bool:
    return isinstance(node, Cache)
