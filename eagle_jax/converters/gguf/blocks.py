"""Blocks of GGUF's quantized types as codes, scales and minima: the same numbers, none of them computed anew.

A block is a few bytes for 32, 64 or 256 neighbouring inputs of one output. Those of 256 (K types and IQ4_XS) hold a
float16 factor and small integers, whose product is the scale of 16 or 32 inputs; such products are exact in float32.

Layout: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.unpacking import powers_of_two
from eagle_jax.ops.quantized import QuantType

Octets = np.ndarray  # uint8 [.., bytes]


@dataclasses.dataclass(frozen=True)
class BlockType:
    """A quantization type of GGUF.

    Attributes:
        quant_type: what becomes of a matrix of this type.
        parts: codes `[.., inputs]`, scales and minima `[.., groups]` of blocks `[.., bytes]`.
    """

    quant_type: QuantType
    parts: Callable[[Octets], QuantizedTensor]


def read_blocks(data: Octets, inputs: int, type: str) -> QuantizedTensor:
    """Returns a matrix of a type in `BLOCK_TYPES`.

    Args:
        data: `[out, bytes of a row]`.
        inputs: numbers in a row.
    """
    import gguf

    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    parts = BLOCK_TYPES[type].parts(data.reshape(len(data), -1, size))
    minima = None if parts.minima is None else parts.minima.reshape(len(data), -1)
    return QuantizedTensor(parts.codes.reshape(-1, inputs), parts.scales.reshape(len(data), -1), minima)


def _q4_0(blocks: Octets) -> QuantizedTensor:
    scale, nibbles = _split(blocks, 2, 16)
    return QuantizedTensor(_signed(_fields(nibbles, 4, 16), 8), _half(scale))


def _q4_1(blocks: Octets) -> QuantizedTensor:
    scale, minimum, nibbles = _split(blocks, 2, 2, 16)
    return QuantizedTensor(_fields(nibbles, 4, 16), _half(scale), _half(minimum))


def _q5_0(blocks: Octets) -> QuantizedTensor:
    scale, high, nibbles = _split(blocks, 2, 4, 16)
    return QuantizedTensor(_signed(_fields(nibbles, 4, 16) | _fields(high, 1, 1) << 4, 16), _half(scale))


def _q5_1(blocks: Octets) -> QuantizedTensor:
    scale, minimum, high, nibbles = _split(blocks, 2, 2, 4, 16)
    return QuantizedTensor(_fields(nibbles, 4, 16) | _fields(high, 1, 1) << 4, _half(scale), _half(minimum))


def _q8_0(blocks: Octets) -> QuantizedTensor:
    scale, codes = _split(blocks, 2, 32)
    return QuantizedTensor(codes.view(np.int8), _half(scale))


def _q2_k(blocks: Octets) -> QuantizedTensor:
    factors, pairs, scale, minimum = _split(blocks, 16, 64, 2, 2)
    return QuantizedTensor(
        _fields(pairs, 2, 32), _products(scale, factors & 15), _negative(_products(minimum, factors >> 4))
    )


def _q3_k(blocks: Octets) -> QuantizedTensor:
    high, pairs, low_factors, high_factors, scale = _split(blocks, 32, 64, 8, 4, 2)
    factors = _signed(_fields(low_factors, 4, 8) | _fields(high_factors, 2, 4) << 4, 32)
    return QuantizedTensor(_signed(_fields(pairs, 2, 32) | _fields(high, 1, 32) << 2, 4), _products(scale, factors))


def _q4_k(blocks: Octets) -> QuantizedTensor:
    head, nibbles = _split(blocks, 16, 128)
    return QuantizedTensor(_fields(nibbles, 4, 32), *_scales_and_minima(head))


def _q5_k(blocks: Octets) -> QuantizedTensor:
    head, high, nibbles = _split(blocks, 16, 32, 128)
    return QuantizedTensor(_fields(nibbles, 4, 32) | _fields(high, 1, 32) << 4, *_scales_and_minima(head))


def _q6_k(blocks: Octets) -> QuantizedTensor:
    nibbles, high, factors, scale = _split(blocks, 128, 64, 16, 2)
    codes = _signed(_fields(nibbles, 4, 64) | _fields(high, 2, 32) << 4, 32)
    return QuantizedTensor(codes, _products(scale, factors.view(np.int8)))


def _iq4_nl(blocks: Octets) -> QuantizedTensor:
    scale, nibbles = _split(blocks, 2, 16)
    return QuantizedTensor(_fields(nibbles, 4, 16), _half(scale))


def _iq4_xs(blocks: Octets) -> QuantizedTensor:
    scale, high, low, nibbles = _split(blocks, 2, 2, 4, 128)
    factors = _signed(_fields(low, 4, 1) | _fields(high, 2, 1) << 4, 32)
    return QuantizedTensor(_fields(nibbles, 4, 16), _products(scale, factors))


def _mxfp4(blocks: Octets) -> QuantizedTensor:
    exponent, nibbles = _split(blocks, 1, 16)
    return QuantizedTensor(_fields(nibbles, 4, 16), powers_of_two(exponent))


def _nvfp4(blocks: Octets) -> QuantizedTensor:
    """Scales are 8-bit floats without a sign."""
    scales, nibbles = _split(blocks, 4, 32)
    scales = (scales & 127).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return QuantizedTensor(_fields(nibbles, 4, 8), np.nan_to_num(scales, nan=0))  # llama.cpp reads what is NaN as 0


BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType(QuantType(4, 32), _q4_0),
    "Q4_1": BlockType(QuantType(4, 32, has_minima=True), _q4_1),
    "Q5_0": BlockType(QuantType(8, 32), _q5_0),
    "Q5_1": BlockType(QuantType(8, 32, has_minima=True), _q5_1),
    "Q8_0": BlockType(QuantType(8, 32), _q8_0),
    "Q2_K": BlockType(QuantType(4, 16, has_minima=True), _q2_k),
    "Q3_K": BlockType(QuantType(4, 16), _q3_k),
    "Q4_K": BlockType(QuantType(4, 32, has_minima=True), _q4_k),
    "Q5_K": BlockType(QuantType(8, 32, has_minima=True), _q5_k),
    "Q6_K": BlockType(QuantType(8, 16), _q6_k),
    "IQ4_NL": BlockType(QuantType(4, 32, "iq4_nl"), _iq4_nl),
    "IQ4_XS": BlockType(QuantType(4, 32, "iq4_nl"), _iq4_xs),
    "MXFP4": BlockType(QuantType(4, 32, "e2m1"), _mxfp4),
    "NVFP4": BlockType(QuantType(4, 16, "e2m1"), _nvfp4),
}


def _split(blocks: Octets, *sizes: int) -> list[Octets]:
    """Returns the fields of blocks, by their sizes in bytes."""
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=-1)


def _fields(octets: Octets, bits: int, run: int) -> Octets:
    """Unpacks small unsigned integers: of each run of bytes first the lowest bits of all of them, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = octets.reshape(*octets.shape[:-1], -1, 1, run)
    return (runs >> shifts & np.uint8(2**bits - 1)).reshape(*octets.shape[:-1], -1)


def _signed(codes: Octets, zero: int) -> np.ndarray:
    return codes.view(np.int8) - np.int8(zero)


def _half(octets: Octets) -> np.ndarray:
    return np.ascontiguousarray(octets).view(np.float16)


def _products(scale: Octets, factors: np.ndarray) -> np.ndarray:
    return _half(scale).astype(np.float32) * factors.astype(np.float32)


def _negative(minima: np.ndarray) -> np.ndarray:
    """Negates the minima, which K types subtract."""
    return -minima


def _scales_and_minima(head: Octets) -> tuple[np.ndarray, np.ndarray]:
    """Unpacks those of eight groups from 16 bytes: both float16 factors, then integers of 6 bits.

    The first four of each lie in the low bits of a byte. Of the others the low four bits share a byte, and the high two
    are those above the first four.
    """
    scale, minimum, low_scales, low_minima, mixed = _split(head, 2, 2, 4, 4, 4)
    scales = np.concatenate([low_scales & 63, mixed & 15 | low_scales >> 6 << 4], axis=-1)
    minima = np.concatenate([low_minima & 63, mixed >> 4 | low_minima >> 6 << 4], axis=-1)
    return _products(scale, scales), _negative(_products(minimum, minima))
