"""Quantized weights are multiplied as integers, as NumPy does with the same ones, and a row's bits are its own."""

import dataclasses
import hashlib
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.ops import Affine, linear, matmul
from eagle_jax.ops.cpu import backend
from eagle_jax.ops.cpu.quantized_panels import QuantizedPanels, fits, pack, unpack
from eagle_jax.ops.dispatch import ACTIVATIONS
from eagle_jax.ops.quantized import E4M3, QuantArray, QuantType, dense, quantize
from tests.ops.quantized_weights import PUBLISHED, random_weight

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

MADE_HERE = [QuantType(8), QuantType(8, 160), QuantType(4, 32), QuantType(4, 128), QuantType(4, 16), QuantType(4)]
QUANT_TYPES = pytest.mark.parametrize("kind", [*MADE_HERE, *PUBLISHED], ids=str)
SOME_TYPES = pytest.mark.parametrize("kind", [*MADE_HERE, "Q4_1", "IQ4_NL", "GPTQ", "FP8"], ids=str)
INPUTS, BLOCK = 640, 128
BITS = {16: "a93ae65e20c66930", 8: "6c8c1889062c9494"}  # first digits of a hash, by bits of rows


@pytest.fixture(params=[16, 8], ids=lambda bits: f"rows of {bits} bits")
def row_bits(request, monkeypatch) -> int:
    """What rows are rounded to."""
    monkeypatch.setenv(ACTIVATIONS, f"int{request.param}")
    return backend.row_bits(8)


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape)


def rounded(key: jax.Array, kind: QuantType | str, *shape: int) -> QuantArray:
    """A random weight that is quantized here, or one of the kinds that files have."""
    if isinstance(kind, str):
        return random_weight(kind, *shape, seed=int(jax.random.bits(key)))
    return quantize(normal(key, *shape), kind, jnp.float32)


def blocks_of(quant_type: QuantType) -> list[slice]:
    """At most 128 inputs of one group each."""
    group = quant_type.group or INPUTS
    starts = [(begin + start, begin + group) for begin in range(0, INPUTS, group) for start in range(0, group, BLOCK)]
    return [slice(start, min(start + BLOCK, end)) for start, end in starts]


def with_rounded_rows(x: jax.Array, weight: QuantArray, bits: int) -> np.ndarray:
    """The product of rows that are rounded block by block, in float64. With 8-bit floats rows stay what they are."""
    x, order = np.asarray(x), weight.order
    values = np.asarray(dense(weight), np.float64)
    if order is not None:
        x, values = x[:, np.asarray(order)], values[:, np.asarray(order)]
    if weight.levels == E4M3:
        return x.astype(np.float64) @ values.T
    made, highest = np.zeros((x.shape[0], weight.shape[0])), np.float32({8: 127, 16: 32639}[bits])
    for block in blocks_of(weight.quant_type):
        largest = np.abs(x[:, block]).max(axis=1, keepdims=True)
        whole = np.rint(x[:, block] * (highest / largest)).astype(np.int64)
        made += whole @ values[:, block].T * (largest / highest)
    return made


@pytest.mark.matrix
@QUANT_TYPES
@pytest.mark.parametrize("rows, outputs", [(1, 192), (2, 16), (6, 70), (7, 48), (20, 64)])
def test_a_product_is_that_of_whole_numbers(kind, rows, outputs, row_bits, getkey):
    x, weight = normal(getkey(), rows, INPUTS), rounded(getkey(), kind, outputs, INPUTS)
    made = jax.jit(matmul)(x, pack(weight))
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, with_rounded_rows(x, weight, row_bits), rtol=1e-5, atol=5e-5)
    exact = np.asarray(x, np.float64) @ np.asarray(dense(weight), np.float64).T
    off = np.sqrt(np.mean((made - exact) ** 2)) / exact.std()
    assert 0 < off < {16: 5e-5, 8: 1e-2}[row_bits]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", PUBLISHED)
def test_wrong_codes_scales_and_minima_would_be_noticed(kind, getkey):
    """Of the numbers that the test above allows: the next code, two scales in each other's place, minima of others."""
    x, weight = normal(getkey(), 3, INPUTS), random_weight(kind, 64, INPUTS)
    next_code = jax.lax.bitcast_convert_type(weight.codes, jnp.uint8).at[5, 7].add(np.uint8(1))
    wrong = [dataclasses.replace(weight, codes=jax.lax.bitcast_convert_type(next_code, weight.codes.dtype))]
    wrong.append(dataclasses.replace(weight, scales=weight.scales[::-1]))
    if weight.minima is not None:
        wrong.append(dataclasses.replace(weight, minima=weight.minima[::-1]))
    if weight.order is not None:
        wrong.append(dataclasses.replace(weight, order=jnp.argsort(weight.order)))
    for other in wrong:
        made = matmul(x, pack(other))
        assert not np.allclose(made, with_rounded_rows(x, weight, backend.row_bits(weight.bits)), rtol=1e-5, atol=5e-5)


@pytest.mark.matrix
@SOME_TYPES
def test_a_row_is_the_same_to_the_bit_beside_any_others(kind, row_bits, getkey):
    x, weight = normal(getkey(), 17, INPUTS), pack(rounded(getkey(), kind, 192, INPUTS))
    together = jax.jit(matmul)(x, weight)
    for count in range(1, 8):
        np.testing.assert_array_equal(jax.jit(matmul)(x[3 : 3 + count], weight), together[3 : 3 + count])


def test_products_have_the_same_bits_on_every_cpu(row_bits):
    """Sums of whole numbers are exact and the rest is rounded alike: by AMX, AVX-512, AVX-VNNI, AVX2 and NEON."""
    rng, digest = np.random.default_rng(0), hashlib.sha256()
    x = jnp.asarray(rng.integers(-(2**20), 2**20, (7, INPUTS)) / 2**16, jnp.float32)
    for kind, rows in itertools.product(PUBLISHED, (1, 7)):
        digest.update(np.asarray(jax.jit(matmul)(x[:rows], pack(random_weight(kind, 80, INPUTS)))).tobytes())
    assert digest.hexdigest()[:16] == BITS[row_bits]


@pytest.mark.matrix
@SOME_TYPES
@pytest.mark.parametrize("num_valid", [0, 1, 4, 7, 9])
def test_padding_is_not_computed(kind, num_valid, row_bits, getkey):
    """Rows of padding become zeros whatever they hold; the bits of the others are those of the rows alone."""
    x, weight = normal(getkey(), 9, INPUTS), pack(rounded(getkey(), kind, 96, INPUTS))

    @jax.jit
    def padded_matmul(x, weight, num_valid):
        return linear(x, Affine(weight), num_valid=jnp.int32(num_valid), dtype=jnp.float32)

    made = padded_matmul(x.at[num_valid:].set(jnp.nan), weight, num_valid)
    np.testing.assert_array_equal(made[:num_valid], jax.jit(matmul)(x, weight)[:num_valid])
    assert not made[num_valid:].any()


@pytest.mark.parametrize("quant_type", MADE_HERE, ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_are_within_their_bits(quant_type, sign, row_bits):
    groups = quant_type.groups(INPUTS)
    lowest = -(2 ** (quant_type.bits - 1))
    codes = jnp.stack([jnp.full(INPUTS, code, jnp.int8) for code in (lowest, -lowest - 1, 0, 1)])
    weight = QuantArray(codes, jnp.ones((4, groups)), bits=quant_type.bits, dtype=np.dtype("float32"))
    made = matmul(jnp.full((1, INPUTS), sign * 3.0), pack(weight))
    np.testing.assert_allclose(made[0], sign * 3.0 * INPUTS * np.array([lowest, -lowest - 1, 0, 1]), rtol=1e-6)


@pytest.mark.matrix
@QUANT_TYPES
@pytest.mark.parametrize("shape", [(64,), (2, 24), (4, 3, 8), (61,)], ids=str)
def test_panels_hold_the_weight(kind, shape, getkey):
    weight = rounded(getkey(), kind, *shape, INPUTS)
    panels = pack(weight)
    assert isinstance(panels, QuantizedPanels) and fits(weight)
    assert (panels.shape, panels.dtype, panels.ndim, panels.size) == (
        weight.shape, weight.dtype, weight.ndim, weight.size,
    )  # fmt: skip
    back = unpack(panels)
    assert jax.tree.structure(back) == jax.tree.structure(weight) and back.codes.dtype == weight.codes.dtype
    jax.tree.map(np.testing.assert_array_equal, back, weight)
    outputs = weight.size // INPUTS
    if outputs % 16 == 0:
        parts, quant_type = (1 + (weight.minima is not None)) * weight.scales.dtype.itemsize, weight.quant_type
        order = 0 if weight.order is None else 4 * INPUTS
        assert panels.nbytes == outputs * (INPUTS * quant_type.bits // 8 + parts * quant_type.groups(INPUTS)) + order
    if len(shape) == 1:
        indices = jnp.asarray([0, shape[0] - 1, 5, 5])
        np.testing.assert_array_equal(panels.rows(indices), dense(weight)[indices])
    assert matmul(normal(getkey(), 2, 3, INPUTS), panels).shape == (2, 3, *shape)


def test_rows_that_are_nearly_zero_or_no_numbers_are_so_alone(getkey):
    x, panels = normal(getkey(), 7, INPUTS), pack(rounded(getkey(), QuantType(8), 64, INPUTS))
    wanted = matmul(x, panels)
    strange = x.at[0].set(0.0).at[1].multiply(1e-36).at[2, 5].set(jnp.nan).at[3, 600].set(jnp.inf).at[4].multiply(1e30)
    made = np.asarray(matmul(strange, panels))
    assert not made[0].any() and not made[1].any()
    assert np.isnan(made[2:4]).all()
    np.testing.assert_allclose(made[4], np.asarray(wanted[4]) * 1e30, rtol=1e-3, atol=1e27)
    np.testing.assert_array_equal(made[5:], wanted[5:])


def test_what_does_not_come_apart_stays(getkey):
    usual = rounded(getkey(), QuantType(4, 32), 64, INPUTS)
    assert fits(usual)
    odd = [
        rounded(getkey(), QuantType(4, 8), 64, INPUTS),
        rounded(getkey(), QuantType(8), 64, INPUTS - 8),
        jax.tree.map(lambda part: part[:0], usual),
        dataclasses.replace(usual, scales=usual.scales.astype(jnp.bfloat16)),
    ]
    assert not any(fits(weight) for weight in odd)


@SOME_TYPES
def test_the_gradient_is_that_of_the_weight_as_it_was(kind, getkey):
    x, weight, towards = normal(getkey(), 5, INPUTS), rounded(getkey(), kind, 48, INPUTS), normal(getkey(), 5, 48)
    back = [jax.vjp(lambda x, form=form: matmul(x, form), x)[1] for form in (pack(weight), dense(weight))]
    np.testing.assert_allclose(*(pull(towards)[0] for pull in back), rtol=1e-4, atol=1e-3)


def test_a_large_product_is_shared_among_threads_and_the_same(getkey):
    x, weight = normal(getkey(), 8, 40, INPUTS), rounded(getkey(), QuantType(4, 128), 2048, INPUTS)
    panels = pack(weight)
    made = jax.jit(lambda x, panels: [matmul(rows, panels) for rows in x])(x, panels)
    for rows, found in zip(x, made, strict=True):
        np.testing.assert_allclose(found, with_rounded_rows(rows, weight, backend.row_bits(4)), rtol=1e-5, atol=1e-4)


def test_what_rows_cannot_be_rounded_to_is_refused_before_anything_is_made(monkeypatch, getkey):
    monkeypatch.setenv(ACTIVATIONS, "int4")
    with pytest.raises(ValueError, match='EAGLE_JAX_ACTIVATIONS=\'int4\' is not known; expected "int16" or "int8"'):
        backend.pack(rounded(getkey(), QuantType(8), 16, INPUTS))


def test_rows_have_8_bits_beside_weights_of_4_unless_the_setting_says_otherwise(monkeypatch):
    from eagle_jax.ops.cpu import quantized_arithmetic

    bits = {}
    for setting, byte_products in itertools.product([None, "int8", "int16"], [True, False]):
        monkeypatch.setattr(quantized_arithmetic, "has_byte_products", lambda has=byte_products: has)
        monkeypatch.delenv(ACTIVATIONS, raising=False)
        if setting:
            monkeypatch.setenv(ACTIVATIONS, setting)
        bits[setting, byte_products] = backend.row_bits(4), backend.row_bits(8)
    expected = {(None, True): (8, 16), ("int8", True): (8, 8), ("int16", True): (16, 16)}
    assert bits == expected | {(setting, False): (16, 16) for setting in (None, "int8", "int16")}


def test_a_cpu_without_products_of_bytes_says_so_and_keeps_16_bits(monkeypatch, caplog):
    from eagle_jax.ops.cpu import quantized_arithmetic

    monkeypatch.setenv(ACTIVATIONS, "int8")
    monkeypatch.setattr(quantized_arithmetic, "has_byte_products", lambda: False)
    backend._warn_of_bytes.cache_clear()
    with caplog.at_level(logging.WARNING, "eagle_jax.ops"):
        assert [backend.row_bits(bits) for bits in (4, 8, 4)] == [16] * 3
    assert caplog.messages == [
        "rows are rounded to 16 bits, not to the 8 of EAGLE_JAX_ACTIVATIONS: this CPU has no products of bytes"
    ]


def test_what_cannot_be_made_is_left_to_xla(monkeypatch, getkey):
    monkeypatch.setattr(backend, "_build_error", lambda part=None: "LLVM does not know it" if part else None)
    assert backend.pack(rounded(getkey(), QuantType(8), 16, INPUTS)) is None
    assert backend.pack(normal(getkey(), 16, INPUTS)) is not None
