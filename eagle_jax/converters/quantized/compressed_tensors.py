"""compressed-tensors, which llm-compressor writes and vLLM reads; the tensors of a weight show its format.

format                 tensors beside X.weight_scale                       rule
pack-quantized         X.weight_packed [out, words] int32, X.weight_shape  q stored as q + 2 ** (b - 1), low bits first
int-quantized          X.weight [out, in] int8                             W = (q - z) * s
float-quantized        X.weight [out, in] float8_e4m3fn                    W = w * s
mxfp8-quantized        the same, scales [out, in / 32] E8M0                W = w * s
nvfp4-pack-quantized   X.weight_packed [out, in / 2] uint8,                W = v * (s / global)
                       X.weight_global_scale [1] float32
mxfp4-pack-quantized   X.weight_packed [out, in / 2] uint8                 W = v * 2 ** (s - 127)

Scales are [out, groups], [out, 1], [1], or one for each block. Zero points z are in X.weight_zero_point: int8 as the
scales, or packed along the outputs with packed codes. With `actorder: group` X.weight_g_idx has the group of each
input. naive-quantized is one of these, mixed-precision several of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.packed import PACKED, SCALE, ZERO, QuantizedTensor
from eagle_jax.converters.quantized import fp4, fp8, packed_words
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect, table
from eagle_jax.converters.quantized.packed_words import ORDER
from eagle_jax.converters.quantized.scale_grid import grid_of
from eagle_jax.converters.quantized.unpacking import SCALES, with_zeros
from eagle_jax.ops.quantized import QuantType

TITLE = "compressed-tensors"
WHOLE = "_global_scale"
FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "dense",
    None,
)


def check(entries: Mapping[str, Any]) -> None:
    """Refuses formats, widths and transforms that are not read."""
    expect(entries, TITLE, {"format": FORMATS})
    if table(entries.get("sparsity_config")).get("format", "dense") != "dense":
        raise ValueError(f"sparsity_config of {TITLE} is not read; expected a model that is not sparse")
    if table(entries.get("transform_config")).get("config_groups"):
        raise ValueError(f"transform_config of {TITLE} is not read; expected a model whose inputs are not rotated")
    for group in table(entries.get("config_groups")).values():
        expect(table(group), TITLE, {"format": FORMATS})
    for weights in _settings(entries):
        expect(weights, TITLE, {"num_bits": (4, 8), "type": ("int", "float")})


def _settings(entries: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the settings of each group's weights."""
    groups = table(entries.get("config_groups")).values()
    return [table(table(group)["weights"]) for group in groups if table(group).get("weights")]


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight with a scale, of any of the formats."""
    block, every = _block(entries), _settings(entries)
    # What every weight must have; where groups differ, their tensors decide.
    has_zeros = bool(every) and not any(weights.get("symmetric", True) for weights in every)
    has_order = bool(every) and all(weights.get("actorder") in ("group", "dynamic") for weights in every)
    needed = (*([ZERO] if has_zeros else []), *([ORDER] if has_order else []))
    for name in list(tensors.ending(PACKED)):
        if not name.endswith("weight"):
            continue
        if tensors.info[name + PACKED].dtype == "int32":
            yield name, packed_words.weight(tensors, name, needed)
        elif name + WHOLE in tensors.info:
            yield name, fp4.nvfp4(tensors, name + PACKED, name + SCALE, name + WHOLE, np.divide)
        else:
            yield name, fp4.mxfp4(tensors, name + PACKED, name + SCALE)
    for module in tensors.ending(".weight"):
        name = f"{module}.weight"
        if tensors.info[name].dtype == fp8.DTYPE:
            yield name, fp8.scaled(tensors, module, block)
        elif tensors.info[name].dtype == "int8":
            yield name, _int8(tensors, name, block, has_zeros)


def _block(entries: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the block size of the config's groups, which must be one."""
    blocks = {fp8.block_of(weights.get("block_structure")) for weights in _settings(entries)} - {None}
    if len(blocks) > 1:
        raise ValueError(
            f"config_groups of {TITLE} state several block sizes, {sorted(map(str, blocks))}; expected one"
        )
    return next(iter(blocks), None)


def _int8(tensors: RawTensors, name: str, block: tuple[int, int] | None, needs_zeros: bool) -> StoredWeight:
    info, scale, zero = tensors.info[name], name + SCALE, name + ZERO
    grid = grid_of(scale, info, tensors.part(scale, name, SCALES, (0, 1, 2)), block)
    has_zeros = needs_zeros or zero in tensors.info
    if has_zeros and tensors.part(zero, name, ("int8",), (0, 1, 2)).shape != tensors.info[scale].shape:
        raise ValueError(
            f"tensor {zero} in {info.file} has shape {list(tensors.info[zero].shape)}; expected that of the scales, "
            f"{list(tensors.info[scale].shape)}"
        )

    def read(take: Take) -> QuantizedTensor:
        scales = grid.expand(take(scale))
        if not has_zeros:
            return QuantizedTensor(take(name), scales)
        codes = (take(name).astype(np.int16) + 128).astype(np.uint8)
        return with_zeros(codes, scales, grid.expand(take(zero).astype(np.float32)) + 128)

    quant_type = QuantType(8, grid.group, has_minima=has_zeros)
    parts = (name, scale, *([zero] if has_zeros else []))
    return StoredWeight(info=described(info, grid.shape, quant_type), parts=parts, read=read)
