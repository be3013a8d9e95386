"""Machine code of ours multiplies as numpy does, whatever instructions the CPU has, and a row's bits are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.kernels import native
from eagle_jax.models.products import matmul
from eagle_jax.models.strips import Strips, fit, in_strips, out_of_strips, outputs_of

pytestmark = pytest.mark.skipif(not native.is_used(), reason="there is no llvmlite for this machine")

DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])


def normal(key: jax.Array, *shape: int, dtype=jnp.float32) -> jax.Array:
    return jax.random.normal(key, shape, dtype)


@DTYPES
@pytest.mark.parametrize("outputs", [16, 48, 64, 160, 70], ids=lambda n: f"{n} outputs")
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 9, 10, 11, 19, 20], ids=lambda n: f"{n} rows")
def test_a_product_is_that_of_numpy(dtype, outputs, rows, getkey):
    x, weight = normal(getkey(), rows, 24, dtype=dtype), normal(getkey(), outputs, 24, dtype=dtype)
    made = jax.jit(matmul)(x, in_strips(weight))
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T, atol=2e-5)


@DTYPES
def test_a_row_is_the_same_to_the_bit_beside_any_others(dtype, getkey):
    x, weight = normal(getkey(), 17, 256, dtype=dtype), in_strips(normal(getkey(), 192, 256, dtype=dtype))
    together = jax.jit(matmul)(x, weight)
    for count in range(1, 15):
        np.testing.assert_array_equal(jax.jit(matmul)(x[3 : 3 + count], weight), together[3 : 3 + count])


@DTYPES
@pytest.mark.parametrize("last", [0, 1, 4, 7])
def test_rows_of_zeros_give_zeros(dtype, last, getkey):
    x, weight = normal(getkey(), 9, 24, dtype=dtype), in_strips(normal(getkey(), 96, 24, dtype=dtype))
    some = x.at[2].set(0).at[last + 1 :].set(0)
    made = jax.jit(matmul)(some, weight)
    np.testing.assert_array_equal(made[: last + 1], jax.jit(matmul)(some[: last + 1], weight))
    assert not made[last + 1 :].any() and not made[2].any()


@DTYPES
@pytest.mark.parametrize("shape", [(64, 6), (2, 24, 6), (4, 3, 8, 10), (61, 8)], ids=str)
def test_strips_hold_the_weight(dtype, shape, getkey):
    weight = normal(getkey(), *shape, dtype=dtype)
    strips = in_strips(weight)
    assert fit(weight) and (strips.shape, strips.dtype, strips.ndim, strips.size) == (
        weight.shape, weight.dtype, weight.ndim, weight.size,
    )  # fmt: skip
    np.testing.assert_array_equal(out_of_strips(strips), weight)
    x = normal(getkey(), 2, 3, shape[-1], dtype=dtype)
    wanted = jnp.einsum("bri,...i->br...", x, weight, preferred_element_type=jnp.float32)
    np.testing.assert_allclose(matmul(x, strips), wanted, atol=1e-4)


@DTYPES
@pytest.mark.parametrize("outputs", [96, 101])
def test_single_outputs_are_found(dtype, outputs, getkey):
    weight = normal(getkey(), outputs, 10, dtype=dtype)
    indices = jnp.array([[0, outputs - 1, 31], [32, 64, 7]])
    np.testing.assert_array_equal(outputs_of(in_strips(weight), indices), weight[indices])


@pytest.mark.parametrize(
    "weight", [np.zeros((40, 6)), jnp.zeros((32, 7), jnp.bfloat16), jnp.zeros((0, 8)), jnp.zeros((32, 8), jnp.float16)]
)
def test_what_does_not_come_apart_stays(weight):
    assert not fit(weight)


def test_the_gradient_is_that_of_the_weight_as_it_was(getkey):
    x, weight, towards = normal(getkey(), 5, 24), normal(getkey(), 48, 24), normal(getkey(), 5, 48)
    (made, back), (wanted, wanted_back) = (jax.vjp(matmul, x, form) for form in (in_strips(weight), weight))
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    (to_x, to_strips), (to_x_too, to_weight) = back(towards), wanted_back(towards)
    np.testing.assert_allclose(to_x, to_x_too, atol=1e-5)
    assert isinstance(to_strips, Strips)
    np.testing.assert_allclose(out_of_strips(to_strips), to_weight, atol=1e-5)


def test_a_large_product_is_shared_among_threads_and_the_same(getkey):
    """2**17 vectors multiplied, from which the threads of XLA's pool are woken; and many such products at a time."""
    weight = normal(getkey(), 2048, 512)
    x = normal(getkey(), 8, 40, 512)
    strips = in_strips(weight)
    wanted = np.einsum("bri,oi->bro", x, weight, dtype=np.float64)
    made = jax.jit(lambda x, strips: [matmul(rows, strips) for rows in x])(x, strips)
    np.testing.assert_allclose(np.stack(made), wanted, atol=1e-3)
    alone = jax.jit(matmul)(x[0, :1], strips)
    np.testing.assert_array_equal(alone[0], made[0][0])
