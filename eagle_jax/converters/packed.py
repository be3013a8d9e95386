"""Rounded weights on disk, as the compressed-tensors library packs them ("pack-quantized"), which vLLM reads too.

X.weight_packed  [out, words] int32   codes + 128 (8 bits) or + 8 (4 bits), the first of a word in its lowest bits
X.weight_scale   [out, groups]        what codes are multiplied with; we write float32
X.weight_shape   [2] int64            out, in
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

PACKED, SCALE, SHAPE = "_packed", "_scale", "_shape"


class QuantizedTensor(NamedTuple):
    """One quantized weight as `ops.quantized.QuantArray` holds it, in numpy.

    Attributes:
        codes: `[out, in]`: int8 (signed 4-bit ones too), uint8 (with minima, or indices into a table), float8_e4m3fn.
        scales: `[out, groups]`, float16 or float32.
        minima: as the scales, or None.
        order: int32 `[in]`, input of the model that each input of the codes is, or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None = None
    order: np.ndarray | None = None


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Words `[out, words]` int32 of codes `[out, in]`; what is left of the last word are zeros of the packed form."""
    per_word = 32 // bits
    spare = -codes.shape[1] % per_word
    unsigned = np.pad(codes.astype(np.int16) + 2 ** (bits - 1), ((0, 0), (0, spare))).astype(np.uint8)
    if bits == 4:
        unsigned = (unsigned[:, 0::2] | (unsigned[:, 1::2] << 4)).astype(np.uint8)
    return np.ascontiguousarray(unsigned).view("<i4")


def unpack(words: np.ndarray, bits: int, inputs: int) -> np.ndarray:
    """Codes `[out, inputs]` int8 of packed words."""
    octets = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 4:
        octets = np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(words), -1)
    return (octets[:, :inputs].astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)


def bits_of(words: int, inputs: int) -> int | None:
    """Bits of each code, going by how many words hold the inputs; None if neither 4 nor 8."""
    return next((bits for bits in (4, 8) if words == -(-inputs * bits // 32)), None)


def tensors(name: str, weight: QuantizedTensor, bits: int) -> Iterator[tuple[str, np.ndarray]]:
    """The three tensors of the weight `name`.

    Raises:
        ValueError: it has minima, a table or another order of inputs, which are read and not written.
    """
    if weight.minima is not None or weight.order is not None or weight.codes.dtype.name not in ("int8", "int4"):
        raise ValueError(
            f"{name} has zero points, floats of few bits or sorted inputs, which are read and not written; expected "
            "integers around 0: keep the folder that the model was read from"
        )
    yield name + PACKED, pack(weight.codes, bits)
    yield name + SCALE, np.ascontiguousarray(weight.scales)
    yield name + SHAPE, np.asarray(weight.codes.shape, np.int64)
