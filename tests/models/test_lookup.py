"""Rows of a table: the same numbers and derivative by machine code and by XLA, and no other table made on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from eagle_jax.decoding.decode import compiler_options
from eagle_jax.kernels import native
from eagle_jax.models.lookup import rows_of
from eagle_jax.models.strips import in_strips, out_of_strips
from eagle_jax.sharding.mesh import AXES, Sharding
from eagle_jax.sharding.tracing import traced_over

ROWS, SIZE = 96, 32
INDICES = jnp.asarray([[3, 0, 95], [3, 64, 63]])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
STRIPPED = pytest.mark.parametrize("stripped", [True, False], ids=["strips", "as stored"])
needs_strips = pytest.mark.skipif(not native.is_used(), reason="there is no llvmlite for this machine")


def table(dtype, rows: int = ROWS) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (rows, SIZE)).astype(dtype)


def taken(held, indices):
    return jax.jit(rows_of, static_argnums=2)(held, indices, jnp.dtype(jnp.float32))


@DTYPES
@pytest.mark.parametrize("shape", [(2, 3), (40,), (0,), (2, 0)], ids=str)
def test_rows_are_those_of_the_table(dtype, shape):
    indices = jnp.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 % ROWS
    made = taken(table(dtype), indices)
    assert made.shape == (*shape, SIZE) and made.dtype == jnp.float32
    np.testing.assert_array_equal(made, np.asarray(table(dtype), np.float32)[np.asarray(indices)])


@needs_strips
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [16, 96, 70], ids=lambda n: f"{n} rows")
def test_rows_of_strips_are_those_of_the_table(dtype, rows):
    whole = table(dtype, rows)
    np.testing.assert_array_equal(taken(in_strips(whole), jnp.arange(rows)), np.asarray(whole, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [96, 70], ids=lambda n: f"{n} rows")
def test_an_index_that_is_none_is_the_nearest(dtype, rows):
    """Also where a strip has zeros behind the table's end."""
    whole = table(dtype, rows)
    for held in (whole, *([in_strips(whole)] if native.is_used() else [])):
        made = taken(held, jnp.asarray([rows, 2**31 - 1, -1, -(2**31)]))
        wanted = np.asarray(whole, np.float32)[[rows - 1, rows - 1, 0, 0]]
        np.testing.assert_array_equal(made, wanted)


@needs_strips
@STRIPPED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_derivative_is_that_of_the_table(dtype, stripped):
    weights = jnp.arange(SIZE, dtype=jnp.float32)[None, None]

    def total(held):
        return jnp.sum(rows_of(held, INDICES, jnp.float32) * weights)

    made = jax.grad(total)(in_strips(table(dtype)) if stripped else table(dtype))
    made = out_of_strips(made) if stripped else made
    wanted = jax.grad(lambda held: jnp.sum(held[INDICES].astype(jnp.float32) * weights))(table(dtype))
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(made[3], 2 * np.arange(SIZE))


def test_rows_of_several_programs_at_once():
    several = jnp.stack([INDICES, INDICES[::-1]])
    made = jax.vmap(lambda indices: rows_of(table("bfloat16"), indices, jnp.float32))(several)
    np.testing.assert_array_equal(made, np.asarray(table("bfloat16"), np.float32)[np.asarray(several)])


def looped(held, times):
    """Takes rows again and again."""
    zero = jnp.zeros((*INDICES.shape, SIZE))
    return jax.lax.fori_loop(
        0, times, lambda i, so_far: so_far + rows_of(held, (INDICES + i) % held.shape[0], jnp.float32), zero
    )


@needs_strips
@STRIPPED
def test_a_loop_makes_no_float32_of_the_whole_table(stripped, monkeypatch, fused):
    whole = table("bfloat16", 4096)
    held, large = in_strips(whole) if stripped else whole, 4096 * SIZE * 4

    def beside() -> int:
        program = jax.jit(lambda held, times: looped(held, times), compiler_options=compiler_options())
        return program.lower(held, 3).compile(fused).memory_analysis().temp_size_in_bytes

    assert beside() < 0.1 * large
    monkeypatch.setenv(native.VARIABLE, "off")
    assert beside() >= large  # by XLA it is


def test_programs_over_several_devices_are_left_to_xla():
    def text() -> str:
        return jax.jit(lambda indices: rows_of(table("bfloat16"), indices, jnp.float32)).lower(INDICES).as_text()

    assert ("eagle_jax_rows" in text()) == native.is_used()
    with traced_over(Sharding(Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES))):
        assert "eagle_jax_rows" not in text()
