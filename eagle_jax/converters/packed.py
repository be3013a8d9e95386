"""Quantized weights on disk, as the compressed-tensors library packs them ("pack-quantized"), which vLLM reads too.

X.weight_packed      [out, words] int32     codes + 128 (8 bits) or + 8 (4 bits), the first of a word in its lowest bits
X.weight_scale       [out, groups]          factors of the codes; we write float32
X.weight_zero_point  [words, groups] int32  zero points of unsigned codes, packed likewise, but along the outputs
X.weight_shape       [2] int64              out, in

Unsigned codes q with a zero point z stand for (q - z) * scale, and are packed without an offset.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from eagle_jax.ops.quantized import QuantArray

PACKED, SCALE, ZERO, SHAPE = "_packed", "_scale", "_zero_point", "_shape"


class QuantizedTensor(NamedTuple):
    """One quantized weight in numpy, with the parts of `ops.quantized.QuantArray`.

    Attributes:
        codes: `[out, in]`: int8 (signed 4-bit ones too), uint8 (with minima, or indices into a table), float8_e4m3fn.
        scales: `[out, groups]`, float16 or float32.
        minima: shape and dtype of the scales, or None.
        order: int32 `[in]`, the model's input for each input of the codes, or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None = None
    order: np.ndarray | None = None


def of_array(weight: QuantArray) -> QuantizedTensor:
    """Returns a weight `[out, in]` in numpy, with 4-bit codes in one byte each."""
    codes, scales, minima, order = (
        None if part is None else np.asarray(part)
        for part in (weight.codes, weight.scales, weight.minima, weight.order)
    )
    assert codes is not None and scales is not None
    if codes.dtype.name in ("int4", "uint4"):
        codes = codes.astype(np.int8 if codes.dtype.name == "int4" else np.uint8)
    return QuantizedTensor(codes, scales, minima, order)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs codes `[out, in]` into words `[out, words]` int32; spare bits of the last word are 0."""
    padding = -codes.shape[1] % (32 // bits)
    offset = 0 if codes.dtype == np.uint8 else 2 ** (bits - 1)
    unsigned = np.pad(codes.astype(np.int16) + offset, ((0, 0), (0, padding))).astype(np.uint8)
    if bits == 4:
        unsigned = (unsigned[:, 0::2] | (unsigned[:, 1::2] << 4)).astype(np.uint8)
    return np.ascontiguousarray(unsigned).view("<i4")


def bits_of(words: int, inputs: int) -> int | None:
    """Returns the bits of each code, given the numbers of words and inputs of a row; None if neither 4 nor 8."""
    return next((bits for bits in (4, 8) if words == -(-inputs * bits // 32)), None)


def tensors(name: str, weight: QuantizedTensor, bits: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of the weight `name`. Raises ValueError if the format cannot express it."""
    if (feature := _unsupported_feature(weight, bits)) is not None:
        raise ValueError(
            f"{name} has {feature}, which the packed integers of compressed-tensors do not have; keep the files that "
            'the model was read from, or load it with quantize="none" to write floats'
        )
    yield name + PACKED, pack(weight.codes, bits)
    yield name + SCALE, np.ascontiguousarray(weight.scales)
    if weight.minima is not None:
        yield name + ZERO, np.ascontiguousarray(pack(_zeros(weight).T, bits).T)
    yield name + SHAPE, np.asarray(weight.codes.shape, np.int64)


def _unsupported_feature(weight: QuantizedTensor, bits: int) -> str | None:
    """Describes the feature of a weight that the format cannot express, if any."""
    if weight.order is not None:
        return "inputs in another order"
    if weight.minima is None:
        return None if weight.codes.dtype == np.int8 else "codes that are no integers around 0"
    zeros = _zeros(weight)
    products = -zeros.astype(np.float32) * weight.scales.astype(np.float32)
    is_exact = zeros.max(initial=0) < 2**bits and np.array_equal(products, weight.minima)
    return None if is_exact else "minima that are no integer zero points"


def _zeros(weight: QuantizedTensor) -> np.ndarray:
    """Returns the nearest integer zero points, uint8."""
    assert weight.minima is not None
    zeros = np.rint(-weight.minima.astype(np.float32) / weight.scales.astype(np.float32))
    return np.clip(zeros, 0, 255).astype(np.uint8)
