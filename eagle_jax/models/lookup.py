"""Rows of a table of embeddings, by XLA and by machine code of ours.

XLA:CPU has no gather of bfloat16. In a program with a loop it makes float32 of the whole table first, once a call.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.kernels import native
from eagle_jax.models.strips import PAIRED, Strips, outputs_of

Table = Strips | Float[Array, "v h"]


def rows_of(table: Table, indices: Int[Array, "*n"], dtype: DTypeLike) -> Float[Array, "*n h"]:
    """Rows of a table, one for each index; an index that is none is taken for the nearest."""
    indices = jnp.clip(indices, 0, table.shape[0] - 1)
    return (_by_machine_code if _is_native(table) else _by_xla)(table, indices).astype(dtype)


def _is_native(table: Table) -> bool:
    """Float32 is left to XLA, which takes it as it is."""
    size, width = table.shape
    return table.dtype == jnp.bfloat16 and size > 0 and width % PAIRED[table.dtype] == 0 and native.is_used_alone()


def _by_xla(table: Table, indices: Int[Array, "*n"]) -> Float[Array, "*n h"]:
    return outputs_of(table, indices) if isinstance(table, Strips) else jnp.take(table, indices, axis=0)


@jax.custom_jvp
@jax.jit  # step by step the table would be copied to be looked at in pairs
def _by_machine_code(table: Table, indices: Int[Array, "*n"]) -> Float[Array, "*n h"]:
    """In float32. A table as it is, is one of strips of a single output."""
    pair = PAIRED[table.dtype]
    strips = table.data if isinstance(table, Strips) else table.reshape(len(table), -1, pair)
    made = native.rows(strips, indices.reshape(-1).astype(jnp.int32))
    return made.reshape(*indices.shape, made.shape[1])


@_by_machine_code.defjvp
def _derivative(primals: tuple, tangents: tuple) -> tuple[Float[Array, "*n h"], Float[Array, "*n h"]]:
    """A row changes as the table does there."""
    table, indices = primals
    made = _by_machine_code(table, indices)
    return made, _by_xla(tangents[0], indices).astype(made.dtype)
