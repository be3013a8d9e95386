"""Unpacks codes from words and bytes, and converts scales from the files' dtypes."""

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.ops.quantized import LEVELS

SCALES = ("float16", "bfloat16", "float32")


def nibbles(octets: np.ndarray) -> np.ndarray:
    """Returns halves `[.., 2 n]` of bytes `[.., n]`, the lower first."""
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)


def fields(words: np.ndarray, bits: int) -> np.ndarray:
    """Returns unsigned numbers of 4 or 8 bits `[.., n]` of words of 32 bits, the first of a word in its lowest bits."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return nibbles(octets) if bits == 4 else octets


def around_zero(codes: np.ndarray, bits: int) -> np.ndarray:
    """Converts unsigned codes with 0 in the middle of their range to signed codes."""
    return (codes.astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)


def powers_of_two(exponents: np.ndarray) -> np.ndarray:
    """Converts E8M0 scales exactly: 2 ** (e - 127), NaN for 255."""
    table = np.ldexp(np.float32(1), np.arange(255) - 127).astype(np.float32)
    return np.append(table, np.float32(np.nan))[exponents.view(np.uint8)]


def floats(scales: np.ndarray) -> np.ndarray:
    """Converts scales exactly for `QuantizedTensor`: float16 scales are kept, others become float32."""
    if scales.dtype == np.uint8 or scales.dtype.name == "float8_e8m0fnu":
        return powers_of_two(scales)
    return scales if scales.dtype == np.float16 else scales.astype(np.float32)


def with_zeros(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, order: np.ndarray | None = None
) -> QuantizedTensor:
    """Returns the weight (codes - zeros) * scales, of unsigned codes.

    Minima are -zeros * scales in float32. A zero point has 8 bits or fewer, so with scales of 16 bits, which have 11 or
    8 significant ones, they are exact, and so are codes * scales and the sum. With scales of float32 each of the three
    is rounded once.
    """
    exact = scales.astype(np.float32)
    return QuantizedTensor(codes, exact, -(zeros.astype(np.float32) * exact), order)


def dense(tensor: QuantizedTensor, levels: str) -> np.ndarray:
    """Returns the weight in float32, its inputs in the order of the model.

    Args:
        levels: what codes are, as in `QuantType`.
    """
    table = np.asarray(LEVELS[levels], np.float32) if levels in LEVELS else None
    values = tensor.codes.astype(np.float32) if table is None else table[tensor.codes]
    grouped = values.reshape(*tensor.scales.shape, -1) * tensor.scales.astype(np.float32)[..., None]
    if tensor.minima is not None:
        grouped = grouped + tensor.minima.astype(np.float32)[..., None]
    values = grouped.reshape(values.shape)
    return values if tensor.order is None else values[..., np.argsort(tensor.order)]
