"""Rounded weights are multiplied as whole numbers, as numpy does with the same ones, and a row's bits are its own."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.kernels import native
from eagle_jax.models.products import matmul
from eagle_jax.models.quant import QuantArray, Rounding, dense, quantise
from eagle_jax.models.strips import RoundedStrips, fit, in_strips, out_of_strips

pytestmark = pytest.mark.skipif(not native.is_used(), reason="there is no llvmlite for this machine")

ROUNDINGS = pytest.mark.parametrize(
    "rounding",
    [Rounding(8), Rounding(8, 160), Rounding(4, 32), Rounding(4, 128), Rounding(4, 16), Rounding(4)],
    ids=str,
)
INPUTS, BLOCK = 640, 128


@pytest.fixture(params=[16, 8], ids=lambda bits: f"rows of {bits} bits")
def row_bits(request, monkeypatch) -> int:
    """What rows are rounded to."""
    monkeypatch.setenv(native.ACTIVATIONS_VARIABLE, f"int{request.param}")
    jax.clear_caches()
    return native.row_bits()


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape)


def rounded(key: jax.Array, rounding: Rounding, *shape: int) -> QuantArray:
    return quantise(normal(key, *shape), rounding, jnp.float32)


def blocks_of(rounding: Rounding) -> list[slice]:
    """At most 128 inputs of one group each."""
    group = rounding.group or INPUTS
    starts = [(begin + start, begin + group) for begin in range(0, INPUTS, group) for start in range(0, group, BLOCK)]
    return [slice(start, min(start + BLOCK, end)) for start, end in starts]


def with_rounded_rows(x: jax.Array, weight: QuantArray, rounding: Rounding, bits: int) -> np.ndarray:
    """The product of rows that are rounded block by block, in float64."""
    x, levels, made = np.asarray(x), np.asarray(weight.levels, np.int64), np.zeros((x.shape[0], weight.shape[0]))
    highest = np.float32(2 ** (bits - 1) - 1)
    for block in blocks_of(rounding):
        largest = np.abs(x[:, block]).max(axis=1, keepdims=True)
        whole = np.rint(x[:, block] * (highest / largest)).astype(np.int64)
        scales = np.asarray(weight.scales, np.float64)[:, block.start // (rounding.group or INPUTS)]
        made += (whole @ levels[:, block].T) * (largest / highest) * scales
    return made


@ROUNDINGS
@pytest.mark.parametrize("rows, outputs", [(1, 192), (2, 16), (6, 70), (7, 48), (20, 64)])
def test_a_product_is_that_of_whole_numbers(rounding, rows, outputs, row_bits, getkey):
    x, weight = normal(getkey(), rows, INPUTS), rounded(getkey(), rounding, outputs, INPUTS)
    made = jax.jit(matmul)(x, in_strips(weight))
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, with_rounded_rows(x, weight, rounding, row_bits), rtol=1e-5, atol=5e-5)
    exact = np.asarray(x, np.float64) @ np.asarray(dense(weight), np.float64).T
    off = np.sqrt(np.mean((made - exact) ** 2)) / exact.std()
    assert 0 < off < {16: 5e-5, 8: 1e-2}[row_bits]


@ROUNDINGS
def test_a_row_is_the_same_to_the_bit_beside_any_others(rounding, row_bits, getkey):
    x, weight = normal(getkey(), 17, INPUTS), in_strips(rounded(getkey(), rounding, 192, INPUTS))
    together = jax.jit(matmul)(x, weight)
    for count in range(1, 8):
        np.testing.assert_array_equal(jax.jit(matmul)(x[3 : 3 + count], weight), together[3 : 3 + count])


@ROUNDINGS
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_are_within_their_bits(rounding, sign, row_bits):
    groups = rounding.groups(INPUTS)
    lowest = -(2 ** (rounding.bits - 1))
    levels = jnp.stack([jnp.full(INPUTS, level, jnp.int8) for level in (lowest, -lowest - 1, 0, 1)])
    weight = QuantArray(levels, jnp.ones((4, groups)), bits=rounding.bits, dtype=np.dtype("float32"))
    made = matmul(jnp.full((1, INPUTS), sign * 3.0), in_strips(weight))
    np.testing.assert_allclose(made[0], sign * 3.0 * INPUTS * np.array([lowest, -lowest - 1, 0, 1]), rtol=1e-6)


@ROUNDINGS
@pytest.mark.parametrize("shape", [(64,), (2, 24), (4, 3, 8), (61,)], ids=str)
def test_strips_hold_the_weight(rounding, shape, getkey):
    weight = rounded(getkey(), rounding, *shape, INPUTS)
    strips = in_strips(weight)
    assert isinstance(strips, RoundedStrips) and fit(weight)
    assert (strips.shape, strips.dtype, strips.ndim, strips.size) == (
        weight.shape, weight.dtype, weight.ndim, weight.size,
    )  # fmt: skip
    back = out_of_strips(strips)
    assert jax.tree.structure(back) == jax.tree.structure(weight) and back.levels.dtype == weight.levels.dtype
    jax.tree.map(np.testing.assert_array_equal, back, weight)
    outputs = weight.size // INPUTS
    if outputs % 16 == 0:
        assert strips.nbytes == outputs * (INPUTS * rounding.bits // 8 + 4 * rounding.groups(INPUTS))
    assert matmul(normal(getkey(), 2, 3, INPUTS), strips).shape == (2, 3, *shape)


def test_rows_that_are_nearly_zero_or_no_numbers_are_so_alone(getkey):
    x, strips = normal(getkey(), 7, INPUTS), in_strips(rounded(getkey(), Rounding(8), 64, INPUTS))
    wanted = matmul(x, strips)
    strange = x.at[0].set(0.0).at[1].multiply(1e-36).at[2, 5].set(jnp.nan).at[3, 600].set(jnp.inf).at[4].multiply(1e30)
    made = np.asarray(matmul(strange, strips))
    assert not made[0].any() and not made[1].any()
    assert np.isnan(made[2:4]).all()
    np.testing.assert_allclose(made[4], np.asarray(wanted[4]) * 1e30, rtol=1e-3, atol=1e27)
    np.testing.assert_array_equal(made[5:], wanted[5:])


def test_what_does_not_come_apart_stays(getkey):
    usual = rounded(getkey(), Rounding(4, 32), 64, INPUTS)
    assert fit(usual)
    odd = [
        rounded(getkey(), Rounding(4, 8), 64, INPUTS),
        rounded(getkey(), Rounding(8), 64, INPUTS - 8),
        jax.tree.map(lambda part: part[:0], usual),
        dataclasses.replace(usual, scales=usual.scales.astype(jnp.bfloat16)),
    ]
    assert not any(fit(weight) for weight in odd)


@ROUNDINGS
def test_the_gradient_is_that_of_the_weight_as_it_was(rounding, getkey):
    x, weight, towards = normal(getkey(), 5, INPUTS), rounded(getkey(), rounding, 48, INPUTS), normal(getkey(), 5, 48)
    back = [jax.vjp(lambda x, form=form: matmul(x, form), x)[1] for form in (in_strips(weight), dense(weight))]
    np.testing.assert_allclose(*(pull(towards)[0] for pull in back), rtol=1e-4, atol=1e-3)


def test_a_large_product_is_shared_among_threads_and_the_same(getkey):
    x, weight = normal(getkey(), 8, 40, INPUTS), rounded(getkey(), Rounding(4, 128), 2048, INPUTS)
    strips = in_strips(weight)
    made = jax.jit(lambda x, strips: [matmul(rows, strips) for rows in x])(x, strips)
    for rows, found in zip(x, made, strict=True):
        np.testing.assert_allclose(found, with_rounded_rows(rows, weight, Rounding(4, 128), 16), rtol=1e-5, atol=1e-4)


def test_what_rows_cannot_be_rounded_to_is_refused_before_anything_is_made(monkeypatch, getkey):
    monkeypatch.setenv(native.ACTIVATIONS_VARIABLE, "int4")
    with pytest.raises(ValueError, match='EAGLE_JAX_ACTIVATIONS=\'int4\' is not known; expected "int16" or "int8"'):
        fit(rounded(getkey(), Rounding(8), 16, INPUTS))


def test_a_cpu_without_products_of_bytes_says_so_and_keeps_16_bits(monkeypatch, caplog):
    from eagle_jax.kernels.native import numbers

    monkeypatch.setenv(native.ACTIVATIONS_VARIABLE, "int8")
    monkeypatch.setattr(numbers, "by_bytes", lambda: False)
    native._tell_of_bytes.cache_clear()
    with caplog.at_level(logging.WARNING, "eagle_jax.kernels"):
        assert [native.row_bits() for _ in range(3)] == [16] * 3
    assert caplog.messages == [
        "rows are rounded to 16 bits, not to the 8 of EAGLE_JAX_ACTIVATIONS: this CPU lacks avx512_vnni"
    ]


def test_what_cannot_be_made_is_left_to_xla(monkeypatch, getkey):
    monkeypatch.setattr(native, "_fault", lambda rounded=False: "LLVM does not know it" if rounded else None)
    assert not fit(rounded(getkey(), Rounding(8), 16, INPUTS)) and fit(normal(getkey(), 16, INPUTS))
