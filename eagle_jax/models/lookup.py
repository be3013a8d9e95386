"""Rows of a table of embeddings, by XLA and by machine code of ours.

XLA:CPU has no gather of bfloat16. In a program with a loop it makes float32 of the whole table first, once a call.
"""

from typing import Any

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
    """Float32 is left to XLA, unless it lies in strips, of which XLA takes six rows in 5 us and this code in 1."""
    alike = table.dtype == jnp.bfloat16 or (table.dtype == jnp.float32 and isinstance(table, Strips))
    size, width = table.shape
    return alike and size > 0 and width % PAIRED[table.dtype] == 0 and native.is_used_alone()


def _by_xla(table: Table, indices: Int[Array, "*n"]) -> Float[Array, "*n h"]:
    return outputs_of(table, indices) if isinstance(table, Strips) else jnp.take(table, indices, axis=0)


@jax.custom_jvp
@jax.jit  # step by step the table would be copied to be looked at in pairs
def _by_machine_code(table: Table, indices: Int[Array, "*n"]) -> Float[Array, "*n h"]:
    """In float32."""
    made = native.rows(in_pairs(table), indices.reshape(-1).astype(jnp.int32))
    return made.reshape(*indices.shape, made.shape[1])


def is_plain(table: Any) -> bool:
    """Whether a table is one of floats that machine code of ours can read."""
    kind = isinstance(table, Strips | jax.Array) and PAIRED.get(table.dtype)
    return bool(kind) and table.shape[0] > 0 and table.shape[1] % kind == 0


def in_pairs(table: Table) -> Float[Array, "s _ _"]:
    """A table in strips; as it is, it is one of strips of a single output."""
    return table.data if isinstance(table, Strips) else table.reshape(len(table), -1, PAIRED[table.dtype])


@_by_machine_code.defjvp
def _derivative(primals: tuple, tangents: tuple) -> tuple[Float[Array, "*n h"], Float[Array, "*n h"]]:
    """A row changes as the table does there."""
    table, indices = primals
    made = _by_machine_code(table, indices)
    return made, _by_xla(tangents[0], indices).astype(made.dtype)
