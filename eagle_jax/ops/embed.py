"""Rows of an embedding table."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.ops.packing import PackedWeight
from eagle_jax.ops.quantized import QuantArray, rows_of
from eagle_jax.workarounds import gather


def embed(
    table: PackedWeight | QuantArray | Float[Array, "v h"], indices: Int[Array, "*n"], dtype: DTypeLike
) -> Float[Array, "*n h"]:
    """Returns `table[indices]`. Out-of-range indices are clamped."""
    flat = jnp.clip(indices, 0, table.shape[0] - 1).reshape(-1)
    if isinstance(table, PackedWeight):
        rows = table.rows(flat)
    else:
        rows = rows_of(table, flat) if isinstance(table, QuantArray) else gather(table, flat)
    return rows.astype(dtype).reshape(*indices.shape, table.shape[1])
