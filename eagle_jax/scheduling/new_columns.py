"""Fetches the new tokens of a batch: of each row a window of columns, from where the host left off.

    positions       0  1  2  3  4  5  6  7  8  9
    row 0           p  p  a  a  a  a  .  .  .  .      a: seen at an earlier poll
    row 1           p  p  p  p  p  a  a  n  n  .      n: new
    begin, end      [6, 7], [6, 9]
    a window of 4            row 0 [6, 10), row 1 [7, 11); the host takes 0 and 2 columns of them

So a poll costs the same wherever an answer is.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.loop.state import TopTokens
from eagle_jax.scheduling import programs
from eagle_jax.sharding import Sharding, sharded, to_host
from eagle_jax.struct import pytree

MIN_WIDTH = 64  # four steps of an engine with trees of depth 15 need no more columns, so it has one program


@pytree
class Columns:
    """The tokens of each row and their records, by absolute position (b rows, t positions); on the host without `b`.

    Attributes:
        tokens, committed_at_step, logprobs: see `DecodeState`.
        top: see `DecodeState`; None if no row asks for it.
    """

    tokens: Int[Array | np.ndarray, "*b t"]
    committed_at_step: Int[Array | np.ndarray, "*b t"]
    logprobs: Float[Array | np.ndarray, "*b t"] | None
    top: TopTokens | None


def fetch(
    columns: Columns, begin: Sequence[int], end: Sequence[int], *, sharding: Sharding | None
) -> tuple[list[Columns], float]:
    """Returns the columns `begin[i] .. end[i] - 1` of each row on the host, and the seconds that compiling took."""
    size, room = max(map(int.__sub__, end, begin), default=0), columns.tokens.shape[1]
    width = max(MIN_WIDTH, 1 << max(size - 1, 0).bit_length())
    if _is_on_host(columns) or 2 * width > room:
        host_columns = to_host(columns)
        return [_cut(host_columns, row, slice(*ends)) for row, ends in enumerate(zip(begin, end, strict=True))], 0.0
    first = np.array(begin, np.int32)
    windows, seconds = programs.call(compiled_window(), columns, first, width=width, sharding=sharding)
    host_windows = to_host(windows)
    sizes = (last - start for start, last in zip(begin, end, strict=True))
    return [_cut(host_windows, row, slice(count)) for row, count in enumerate(sizes)], seconds


def window(columns: Columns, begin: Int[Array, "b"], *, width: int, sharding: Sharding | None = None) -> Columns:
    """Returns `width` columns of each row from `begin` on; the last column is repeated at the end."""
    at = begin[:, None] + jnp.arange(width, dtype=jnp.int32)[None]

    def take(values: Array) -> Array:
        places = at if values.ndim == 2 else at[:, :, None]
        return jnp.take_along_axis(values, places, axis=1, mode="clip")

    return jax.tree.map(take, columns)


@functools.cache
def compiled_window() -> Any:
    """Returns `window`, jitted once per process."""
    return jax.jit(sharded(window), static_argnames=("width", "sharding"))


def _is_on_host(columns: Columns) -> bool:
    """Returns whether numpy sees the arrays where they are."""
    devices = columns.tokens.devices() if isinstance(columns.tokens, jax.Array) else set()
    return [device.platform for device in devices] == ["cpu"]


def _cut(columns: Columns, row: int, part: slice) -> Columns:
    return jax.tree.map(lambda leaf: leaf[row, part], columns)
