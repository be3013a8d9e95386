"""MXFP4 as gpt-oss has its experts.

X_blocks  [.., out, in / 32, 16] uint8, two codes of E2M1 to a byte, the even input in the lower half
X_scales  [.., out, in / 32] uint8, the exponents of powers of two, plus 127

The stack X is [.., out, in]; of `gate_up_proj` even outputs are the gate's, odd ones of up.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described
from eagle_jax.converters.quantized.fp4 import LEVELS
from eagle_jax.converters.quantized.unpacking import nibbles, powers_of_two
from eagle_jax.ops.quantized import QuantType

TITLE = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"


def check(entries: Mapping[str, Any]) -> None:
    """Accepts every config: no setting changes what the tensors mean."""


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every stack with `_blocks`."""
    for name in tensors.ending(BLOCKS):
        blocks, scales = name + BLOCKS, name + SCALES
        info = tensors.part(blocks, blocks, ("uint8",), (3, 4))
        shape, size = info.shape[:-1], 2 * math.prod(info.shape[-2:])
        if tensors.part(scales, blocks, ("uint8",), (2, 3)).shape != shape:
            raise ValueError(
                f"tensor {scales} in {info.file} has shape {list(tensors.info[scales].shape)}; expected one scale for "
                f"each block, {list(shape)}"
            )

        def read(take: Take, blocks: str = blocks, scales: str = scales) -> QuantizedTensor:
            return unpack(take(blocks), take(scales))

        quant_type = QuantType(4, 2 * info.shape[-1], LEVELS)
        described_as = described(info, (*shape[:-1], size), quant_type)
        yield name, StoredWeight(info=described_as, parts=(blocks, scales), read=read)


def unpack(blocks: np.ndarray, scales: np.ndarray) -> QuantizedTensor:
    """Returns the codes `[.., out, in]` and scales `[.., out, in / 32]` of a stack."""
    codes = nibbles(blocks)
    return QuantizedTensor(codes.reshape(*codes.shape[:-2], -1), powers_of_two(scales))
