"""Weights of 4-bit floats (E2M1) two to a byte, the lower half first: NVFP4 and MXFP4.

NVFP4  groups of 16, scales of E4M3, and one scale for the tensor
MXFP4  groups of 32, scales that are powers of two (E8M0)

Codes are the bit patterns, which index the table "e2m1".
"""

import math
from collections.abc import Callable

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, group_of
from eagle_jax.converters.quantized.unpacking import floats, nibbles
from eagle_jax.ops.quantized import QuantType

LEVELS = "e2m1"


def nvfp4(
    tensors: RawTensors, octets: str, scale: str, outer: str, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> StoredWeight:
    """Returns the weight in these tensors.

    Args:
        octets, scale, whole: names of the codes, the scales of groups, and the scale of the tensor.
        combine: makes one scale of the two, in float32: it is rounded once.
    """
    global_scale = tensors.part(outer, octets, ("float32",), (0, 1))
    if math.prod(global_scale.shape) != 1:
        raise ValueError(
            f"tensor {outer} in {global_scale.file} has shape {list(global_scale.shape)}; expected one scale"
        )

    def scales(take: Take) -> np.ndarray:
        return combine(take(scale).astype(np.float32), take(outer).reshape(()))

    return _weight(tensors, octets, scale, ("float8_e4m3fn",), (outer,), scales)


def mxfp4(tensors: RawTensors, octets: str, scale: str) -> StoredWeight:
    """Returns the weight in these tensors."""
    return _weight(tensors, octets, scale, ("uint8", "float8_e8m0fnu"), (), lambda take: floats(take(scale)))


def _weight(
    tensors: RawTensors,
    octets: str,
    scale: str,
    dtypes: tuple[str, ...],
    others: tuple[str, ...],
    scales: Callable[[Take], np.ndarray],
) -> StoredWeight:
    info = tensors.part(octets, octets, ("uint8",))
    outputs, inputs = info.shape[0], 2 * info.shape[1]
    grid = tensors.part(scale, octets, dtypes)
    group = group_of(scale, grid, inputs, grid.shape[1])
    if grid.shape[0] != outputs:
        raise ValueError(
            f"tensor {scale} in {grid.file} has shape {list(grid.shape)}; expected scales for {outputs} outputs"
        )

    def read(take: Take) -> QuantizedTensor:
        return QuantizedTensor(nibbles(take(octets)), scales(take))

    described_as = described(info, (outputs, inputs), QuantType(4, group, LEVELS))
    return StoredWeight(info=described_as, parts=(octets, scale, *others), read=read)
