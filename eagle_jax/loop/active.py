"""Runs steps for some rows of a batch, at no cost for the other rows.

Everything but the caches is copied once for all steps of a call; the caches stay where they are, and are read
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
    """Returns the state of these rows, which must be distinct."""
    return _at(state, rows)


def params_at(params: BatchParams, rows: Int[Array, "a"]) -> BatchParams:
    """Returns the parameters of some rows; `processor` is kept, and has to belong to these rows already."""
    return dataclasses.replace(_at(dataclasses.replace(params, processor=None), rows), processor=params.processor)


def with_rows(state: DecodeState, part: DecodeState, rows: Int[Array, "a"]) -> DecodeState:
    """Returns the whole batch's state with these rows replaced by `part`, computed from `state_at`'s result."""

    def put(old: Any, new: Any) -> Any:
        if isinstance(old, Cache):
            return dataclasses.replace(old, layers=new.layers, length=old.length.at[rows].set(new.length))
        return old.at[rows].set(new) if old.ndim else new

    return jax.tree.map(put, state, part, is_leaf=_is_cache)


def _at(tree: T, rows: Int[Array, "a"]) -> T:
    """Returns these rows of arrays whose first axis is the batch; scalars belong to the whole batch."""

    def take(node: Any) -> Any:
        if isinstance(node, Cache):
            return node.at_rows(rows)
        return node[rows] if node.ndim else node

    return jax.tree.map(take, tree, is_leaf=_is_cache)


def _is_cache(node: Any) -> bool:
    return isinstance(node, Cache)
