"""The CPU backend multiplies as NumPy does, whatever instructions the CPU has, and a row's bits are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.ops import Affine, linear, matmul
from eagle_jax.ops.cpu import backend
from eagle_jax.ops.cpu.panels import Panels, fits, gather_outputs, pack, unpack

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])


def normal(key: jax.Array, *shape: int, dtype=jnp.float32) -> jax.Array:
    return jax.random.normal(key, shape, dtype)


def padded_matmul(x: jax.Array, weight: Panels, num_valid: int) -> jax.Array:
    return linear(x, Affine(weight), num_valid=jnp.int32(num_valid), dtype=jnp.float32)


@DTYPES
@pytest.mark.parametrize("outputs", [16, 48, 64, 160, 70], ids=lambda n: f"{n} outputs")
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 9, 10, 11, 19, 20], ids=lambda n: f"{n} rows")
def test_a_product_is_that_of_numpy(dtype, outputs, rows, getkey):
    x, weight = normal(getkey(), rows, 24, dtype=dtype), normal(getkey(), outputs, 24, dtype=dtype)
    made = jax.jit(matmul)(x, pack(weight))
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T, atol=2e-5)


@DTYPES
def test_a_row_is_the_same_to_the_bit_beside_any_others(dtype, getkey):
    x, weight = normal(getkey(), 17, 256, dtype=dtype), pack(normal(getkey(), 192, 256, dtype=dtype))
    together = jax.jit(matmul)(x, weight)
    for count in range(1, 15):
        np.testing.assert_array_equal(jax.jit(matmul)(x[3 : 3 + count], weight), together[3 : 3 + count])


@DTYPES
@pytest.mark.parametrize("num_valid", [0, 1, 2, 5, 8, 9])
def test_padding_is_not_computed(dtype, num_valid, getkey):
    """Rows of padding become zeros whatever they hold; the bits of the others are those of the rows alone."""
    x, weight = normal(getkey(), 9, 24, dtype=dtype).at[2].set(0), pack(normal(getkey(), 96, 24, dtype=dtype))
    padded = x.at[num_valid:].set(jnp.nan)
    made = jax.jit(padded_matmul)(padded, weight, num_valid)
    np.testing.assert_array_equal(made[:num_valid], jax.jit(matmul)(x, weight)[:num_valid])
    np.testing.assert_array_equal(made[:num_valid], jax.jit(matmul)(x[:num_valid], weight))
    assert not made[num_valid:].any() and not made[2].any()


@DTYPES
@pytest.mark.parametrize("num_valid, computed", [(-1, 0), (-(2**31), 0), (6, 5), (2**31 - 1, 5)])
def test_a_count_of_rows_that_there_are_not_is_clamped(dtype, num_valid, computed, getkey):
    x, weight = normal(getkey(), 5, 24, dtype=dtype), pack(normal(getkey(), 96, 24, dtype=dtype))
    made = jax.jit(padded_matmul)(x, weight, num_valid)
    np.testing.assert_array_equal(made[:computed], jax.jit(matmul)(x, weight)[:computed])
    assert not made[computed:].any()


@DTYPES
@pytest.mark.parametrize("shape", [(64, 6), (2, 24, 6), (4, 3, 8, 10), (61, 8)], ids=str)
def test_panels_hold_the_weight(dtype, shape, getkey):
    weight = normal(getkey(), *shape, dtype=dtype)
    panels = pack(weight)
    assert fits(weight) and (panels.shape, panels.dtype, panels.ndim, panels.size) == (
        weight.shape, weight.dtype, weight.ndim, weight.size,
    )  # fmt: skip
    np.testing.assert_array_equal(unpack(panels), weight)
    x = normal(getkey(), 2, 3, shape[-1], dtype=dtype)
    wanted = jnp.einsum("bri,...i->br...", x, weight, preferred_element_type=jnp.float32)
    np.testing.assert_allclose(matmul(x, panels), wanted, atol=1e-4)


@DTYPES
@pytest.mark.parametrize("outputs", [96, 101])
def test_single_outputs_are_found(dtype, outputs, getkey):
    weight = normal(getkey(), outputs, 10, dtype=dtype)
    indices = jnp.array([[0, outputs - 1, 31], [32, 64, 7]])
    np.testing.assert_array_equal(gather_outputs(pack(weight), indices), weight[indices])


@pytest.mark.parametrize(
    "weight", [np.zeros((40, 6)), jnp.zeros((32, 7), jnp.bfloat16), jnp.zeros((0, 8)), jnp.zeros((32, 8), jnp.float16)]
)
def test_what_does_not_come_apart_stays(weight):
    assert not fits(weight)


def test_the_gradient_is_that_of_the_weight_as_it_was(getkey):
    x, weight, towards = normal(getkey(), 5, 24), normal(getkey(), 48, 24), normal(getkey(), 5, 48)
    (made, back), (wanted, wanted_back) = (jax.vjp(matmul, x, form) for form in (pack(weight), weight))
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    (to_x, to_panels), (to_x_too, to_weight) = back(towards), wanted_back(towards)
    np.testing.assert_allclose(to_x, to_x_too, atol=1e-5)
    assert isinstance(to_panels, Panels)
    np.testing.assert_allclose(unpack(to_panels), to_weight, atol=1e-5)


def test_a_large_product_is_shared_among_threads_and_the_same(getkey):
    """2**17 vectors multiplied, from which the threads of XLA's pool are woken; and many such products at a time."""
    weight = normal(getkey(), 2048, 512)
    x = normal(getkey(), 8, 40, 512)
    panels = pack(weight)
    wanted = np.einsum("bri,oi->bro", x, weight, dtype=np.float64)
    made = jax.jit(lambda x, panels: [matmul(rows, panels) for rows in x])(x, panels)
    np.testing.assert_allclose(np.stack(made), wanted, atol=1e-3)
    alone = jax.jit(matmul)(x[0, :1], panels)
    np.testing.assert_array_equal(alone[0], made[0][0])
