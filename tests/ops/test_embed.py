"""Rows of a table, packed or not: numbers, derivative, and no other table made on the way."""

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from eagle_jax.ops import embed, pack_for_backend
from eagle_jax.testing import cpu_backend
from eagle_jax.workarounds import BAD_JAXLIB, loop_options

ROWS, SIZE = 96, 32
INDICES = jnp.asarray([[3, 0, 95], [3, 64, 63]])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
PACKED = pytest.mark.parametrize("packed", [True, False], ids=["packed", "as stored"])
needs_packing = pytest.mark.skipif(cpu_backend() is None, reason="the CPU backend is not used")


def table(dtype, rows: int = ROWS) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (rows, SIZE)).astype(dtype)


def taken(held, indices):
    return jax.jit(embed, static_argnums=2)(held, indices, jnp.dtype(jnp.float32))


@DTYPES
@pytest.mark.parametrize("shape", [(2, 3), (40,), (0,), (2, 0)], ids=str)
def test_rows_are_those_of_the_table(dtype, shape):
    indices = jnp.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 % ROWS
    made = taken(table(dtype), indices)
    assert made.shape == (*shape, SIZE) and made.dtype == jnp.float32
    np.testing.assert_array_equal(made, np.asarray(table(dtype), np.float32)[np.asarray(indices)])


@needs_packing
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [16, 96, 70], ids=lambda n: f"{n} rows")
def test_rows_of_a_packed_table_are_those_of_the_table(dtype, rows):
    whole = table(dtype, rows)
    np.testing.assert_array_equal(taken(pack_for_backend(whole), jnp.arange(rows)), np.asarray(whole, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [96, 70], ids=lambda n: f"{n} rows")
def test_an_index_that_is_none_is_the_nearest(dtype, rows):
    """Also where a panel has zeros behind the table's end."""
    whole = table(dtype, rows)
    for held in (whole, *([pack_for_backend(whole)] if cpu_backend() is not None else [])):
        made = taken(held, jnp.asarray([rows, 2**31 - 1, -1, -(2**31)]))
        wanted = np.asarray(whole, np.float32)[[rows - 1, rows - 1, 0, 0]]
        np.testing.assert_array_equal(made, wanted)


@needs_packing
@PACKED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_derivative_is_that_of_the_table(dtype, packed):
    weights = jnp.arange(SIZE, dtype=jnp.float32)[None, None]

    def total(held):
        return jnp.sum(embed(held, INDICES, jnp.float32) * weights)

    made = jax.grad(total)(pack_for_backend(table(dtype)) if packed else table(dtype))
    made = made.unpack() if packed else made
    wanted = jax.grad(lambda held: jnp.sum(held[INDICES].astype(jnp.float32) * weights))(table(dtype))
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(made[3], 2 * np.arange(SIZE))


def test_rows_of_several_programs_at_once():
    several = jnp.stack([INDICES, INDICES[::-1]])
    made = jax.vmap(lambda indices: embed(table("bfloat16"), indices, jnp.float32))(several)
    np.testing.assert_array_equal(made, np.asarray(table("bfloat16"), np.float32)[np.asarray(several)])


def looped(rows, held, times):
    """Takes rows again and again."""
    zero = jnp.zeros((*INDICES.shape, SIZE))
    return jax.lax.fori_loop(
        0, times, lambda i, so_far: so_far + rows(held, (INDICES + i) % held.shape[0], jnp.float32), zero
    )


def temporary_bytes(rows, held, fused) -> int:
    program = jax.jit(lambda held, times: looped(rows, held, times), compiler_options=loop_options())
    return program.lower(held, 3).compile(fused).memory_analysis().temp_size_in_bytes


@PACKED
def test_a_loop_makes_no_float32_of_the_whole_table(packed, fused):
    if packed and cpu_backend() is None:
        pytest.skip("the CPU backend is not used")
    whole = table("bfloat16", 4096)
    held = pack_for_backend(whole) if packed else whole
    assert temporary_bytes(embed, held, fused) < 0.1 * 4096 * SIZE * 4


@pytest.mark.skipif(jaxlib.__version__ != BAD_JAXLIB, reason=f"jaxlib {BAD_JAXLIB} alone has no gather of bfloat16")
def test_indexing_would_make_float32_of_the_whole_table(fused):
    assert temporary_bytes(lambda held, at, dtype: held[at].astype(dtype), table("bfloat16", 4096), fused) >= (
        4096 * SIZE * 4
    )
