"""Weights of 8-bit floats (E4M3) with one scale for the tensor, each output, or each block, as DeepSeek publishes them.

X.weight  [out, in] float8_e4m3fn       X.weight_scale_inv  [out / 128, in / 128] rounded up, float32

Other publishers name the scale X.weight_scale. In both cases, W = w * scale. `scale_fmt: ue8m0` has powers of two as
scales, in one byte or in float32. Models are made for 8-bit activations, with X.input_scale if the scale is fixed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect
from eagle_jax.converters.quantized.scale_grid import grid_of
from eagle_jax.converters.quantized.unpacking import SCALES
from eagle_jax.ops.quantized import E4M3, QuantType

TITLE = "FP8"
DTYPE = "float8_e4m3fn"
NAMES = ("weight_scale_inv", "weight_scale")


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other floats than E4M3."""
    expect(entries, TITLE, {"fmt": ("e4m3",), "expert_dtype": ("fp8",), "scale_fmt": ("float", "ue8m0", None)})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight of E4M3 with a scale."""
    block = block_of(entries.get("weight_block_size"))
    for module in tensors.ending(".weight"):
        if tensors.info[f"{module}.weight"].dtype == DTYPE:
            yield f"{module}.weight", scaled(tensors, module, block)


def block_of(value: Any) -> tuple[int, int] | None:
    """Returns a block size `[outputs, inputs]` out of a config; None if it states none.

    Raises:
        ValueError: it is no pair of sizes.
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple) or [type(size) for size in value] != [int, int] or min(value) < 1:
        raise ValueError(f"blocks of {TITLE} weights are {value!r}; expected two sizes, as [128, 128], or null")
    return value[0], value[1]


def scaled(tensors: RawTensors, module: str, block: tuple[int, int] | None) -> StoredWeight:
    """Returns the weight of E4M3 of a module."""
    weight = f"{module}.weight"
    info = tensors.info[weight]
    scale = next((name for part in NAMES if (name := f"{module}.{part}") in tensors.info), f"{module}.{NAMES[1]}")
    dtypes = (*SCALES, "uint8", "float8_e8m0fnu")
    grid = grid_of(scale, info, tensors.part(scale, weight, dtypes, (0, 1, 2, 4)), block)

    def read(take: Take) -> QuantizedTensor:
        return QuantizedTensor(take(weight), grid.expand(take(scale)))

    quant_type = QuantType(8, grid.group, E4M3)
    return StoredWeight(info=described(info, grid.shape, quant_type), parts=(weight, scale), read=read)
