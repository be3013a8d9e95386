"""Rows of a table by machine code of ours: the same numbers and derivative, and no other table made on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.kernels import native
from eagle_jax.models.strips import in_strips, outputs_of

pytestmark = pytest.mark.skipif(not native.is_used(), reason="there is no llvmlite for this machine")

ROWS, SIZE = 96, 32
INDICES = jnp.asarray([[3, 0, 95], [3, 64, 63]])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def table(dtype, rows: int = ROWS) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (rows, SIZE)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_are_those_of_the_table(dtype):
    """In float16 by XLA."""
    taken = jax.jit(outputs_of)(table(dtype), INDICES)
    np.testing.assert_array_equal(taken, np.asarray(table(dtype))[INDICES])


@DTYPES
@pytest.mark.parametrize("rows", [16, 96, 70], ids=lambda n: f"{n} rows")
def test_rows_of_strips_are_those_of_the_table(dtype, rows):
    """Also where the last strip has zeros behind the table's end."""
    weight, indices = table(dtype, rows), jnp.arange(rows)
    np.testing.assert_array_equal(jax.jit(outputs_of)(in_strips(weight), indices), np.asarray(weight))


@DTYPES
def test_there_is_nothing_beyond_the_table(dtype):
    wild = jnp.asarray([ROWS, 2**31 - 1, -1, -(2**31)])
    whole = table(dtype)
    for held in (in_strips(whole), whole):
        taken = jax.jit(outputs_of)(held, wild)
        np.testing.assert_array_equal(taken, np.broadcast_to(whole[-1], taken.shape))


@DTYPES
def test_the_derivative_is_that_of_the_table(dtype):
    def gradient(pick):
        weights = jnp.arange(SIZE, dtype=jnp.float32)[None, None]
        return jax.grad(lambda values: jnp.sum(pick(values).astype(jnp.float32) * weights))(table(dtype))

    made = gradient(lambda values: outputs_of(values, INDICES))
    np.testing.assert_array_equal(made, gradient(lambda values: values[INDICES]))
    np.testing.assert_array_equal(made[3], 2 * np.arange(SIZE))


def test_rows_of_several_programs_at_once():
    several = jnp.stack([INDICES, INDICES[::-1]])
    taken = jax.vmap(lambda indices: outputs_of(table("bfloat16"), indices))(several)
    np.testing.assert_array_equal(taken, np.asarray(table("bfloat16"))[several])


def floats_of_all(held) -> bool:
    """Whether a program that takes rows makes float32 of a whole bfloat16 table, in whatever shape."""
    text = jax.jit(lambda held: outputs_of(held, INDICES).astype(jnp.float32)).lower(held).compile().as_text()
    strips = (ROWS // 32, SIZE // 2, 32 * 2)
    shapes = [(ROWS, SIZE), (ROWS, SIZE // 2, 2), strips, (*strips[:2], 32, 2)]
    return any(f"f32[{','.join(map(str, shape))}]" in text for shape in shapes)


@pytest.mark.parametrize("stripped", [True, False], ids=["strips", "as stored"])
def test_no_float32_of_the_whole_table_is_made(stripped, monkeypatch):
    held = in_strips(table("bfloat16")) if stripped else table("bfloat16")
    assert not floats_of_all(held)
    monkeypatch.setenv(native.VARIABLE, "off")
    assert floats_of_all(held)  # by XLA it is
