"""Integers of compressed-tensors in words of 32 bits ("pack-quantized"), low bits first, the middle added to each.

X.weight_packed [out, words], X.weight_shape [2], X.weight_scale [out, groups]

X.weight_zero_point [words, groups] is packed along the outputs; X.weight_g_idx [in] has the group of each input, or -1.
"""

import functools

import numpy as np

from eagle_jax.converters.packed import PACKED, SCALE, SHAPE, ZERO, QuantizedTensor, bits_of
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, group_of
from eagle_jax.converters.quantized.gptq import sorted_inputs
from eagle_jax.converters.quantized.unpacking import SCALES, around_zero, fields, floats, with_zeros
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.ops.quantized import QuantType

ORDER = "_g_idx"


def weight(tensors: RawTensors, name: str, needed: tuple[str, ...]) -> StoredWeight:
    """Returns the weight `name`.

    Args:
        needed: which of `ZERO` and `ORDER` it must have by the config.
    """
    info = tensors.part(name + PACKED, name + PACKED, ("int32",))
    grid = tensors.part(name + SCALE, name + PACKED, SCALES)
    outputs, inputs, bits = _size(tensors, name, info, grid)
    group = group_of(name + SCALE, grid, inputs, grid.shape[1])
    others = tuple(end for end in (ZERO, ORDER) if name + end in tensors.info or end in needed)
    if ZERO in others:
        zero = tensors.part(name + ZERO, name + PACKED, ("int32",))
        if zero.shape != (-(-outputs * bits // 32), grid.shape[1]):
            raise ValueError(
                f"tensor {name + ZERO} in {info.file} has shape {list(zero.shape)}; expected numbers of {bits} bits "
                f"packed along {outputs} outputs, for {grid.shape[1]} groups"
            )
    order = None
    if ORDER in others:
        tensors.part(name + ORDER, name + PACKED, ("int32", "int64"), (1,))
        groups = tensors.peek(name + ORDER)
        if np.any(groups != -1):  # -1 for all inputs: they are in order
            order = sorted_inputs(groups, inputs, group, f"{name}{ORDER} in {info.file}")
    quant_type = QuantType(bits, group, has_minima=ZERO in others, is_ordered=order is not None)
    return StoredWeight(
        info=described(info, (outputs, inputs), quant_type),
        parts=tuple(name + end for end in (PACKED, SCALE, SHAPE, *others)),
        read=functools.partial(_read, name=name, size=(outputs, inputs), quant_type=quant_type, order=order),
    )


def _size(tensors: RawTensors, name: str, info: TensorInfo, grid: TensorInfo) -> tuple[int, int, int]:
    """Returns outputs, inputs and bits."""
    tensors.part(name + SHAPE, name + PACKED, ("int64", "int32"), (1,))
    size = tuple(int(number) for number in tensors.peek(name + SHAPE))
    bits = bits_of(info.shape[1], size[1]) if len(size) == 2 else None
    if bits is None or size[0] != info.shape[0] or grid.shape[0] != size[0]:
        raise ValueError(
            f"{name + PACKED} in {info.file} is int32 {list(info.shape)} with scales {list(grid.shape)}; expected "
            f"int32 words of 4 or 8 bits and scales by group, for a weight {list(size)}"
        )
    return size[0], size[1], bits


def _read(
    take: Take, *, name: str, size: tuple[int, int], quant_type: QuantType, order: np.ndarray | None
) -> QuantizedTensor:
    codes = fields(take(name + PACKED), quant_type.bits)[:, : size[1]]
    codes = codes if order is None else codes[:, order]
    if not quant_type.has_minima:
        return QuantizedTensor(around_zero(codes, quant_type.bits), floats(take(name + SCALE)), order=order)
    # codes and zero points are both stored with the middle added
    zeros = fields(np.ascontiguousarray(take(name + ZERO).T), quant_type.bits)[:, : size[0]].T
    return with_zeros(codes, take(name + SCALE), zeros, order)
