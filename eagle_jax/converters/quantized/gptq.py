"""GPTQ, as AutoGPTQ and GPTQModel write it.

X.qweight  [in * b / 32, out] int32     X.qzeros  [in / g, out * b / 32] int32
X.scales   [in / g, out]                X.g_idx   [in] int32, the group of each input

The first number of a word is in its lowest bits. W[o, i] = (q - z) * s of group `g_idx[i]`. Version 1 stores z - 1,
`checkpoint_format: gptq_v2` stores z. Symmetric weights have the middle for z.

With `desc_act` inputs of a group lie apart: they are sorted by group, and `order` says which inputs they are.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect, group_of, table
from eagle_jax.converters.quantized.statement import begins
from eagle_jax.converters.quantized.unpacking import SCALES, around_zero, fields, floats, with_zeros
from eagle_jax.ops.quantized import QuantType

TITLE = "GPTQ"
PARTS = ("qweight", "qzeros", "scales", "g_idx")
WIDTHS = (4, 8)
LAYOUTS = ("gptq", "gptq_v2", "", None)


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other layouts than GPTQ's own and other widths than 4 and 8 bits."""
    expect(entries, TITLE, {"bits": WIDTHS, "checkpoint_format": LAYOUTS, "format": LAYOUTS, "pack_dtype": ("int32",)})
    # A low-rank correction, and inputs that are rotated.
    expect(entries, TITLE, {"adapter": (None,), "rotation": (None, ""), "is_marlin_format": (False, None)})
    for pattern, changes in table(entries.get("dynamic")).items():
        expect(table(changes), f"{TITLE} for {pattern}", {"bits": WIDTHS, "adapter": (None,)})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight with a `qweight`."""
    for module in tensors.ending(".qweight"):
        yield f"{module}.weight", _weight(tensors, module, settings_of(module, entries))


def settings_of(module: str, entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a module's entries: those of the first pattern in `dynamic` that its name begins with replace others."""
    for pattern, changes in table(entries.get("dynamic")).items():
        if not pattern.startswith("-:") and begins(pattern.removeprefix("+:"), module):
            return {**entries, **table(changes)}
    return entries


def _weight(tensors: RawTensors, module: str, settings: Mapping[str, Any]) -> StoredWeight:
    words, zeros, scales, groups = names = tuple(f"{module}.{part}" for part in PARTS)
    packed = tensors.part(words, words, ("int32",))
    scale = tensors.part(scales, words, SCALES)
    zero = tensors.part(zeros, words, ("int32",))
    bits, is_symmetric = int(settings.get("bits", 4)), settings.get("sym") is True
    inputs, outputs = packed.shape[0] * 32 // bits, packed.shape[1]
    group = group_of(scales, scale, inputs, scale.shape[0])
    if scale.shape[1] != outputs or zero.shape != (scale.shape[0], -(-outputs * bits // 32)):
        raise ValueError(
            f"tensors of {module} in {packed.file} are qweight {list(packed.shape)}, qzeros {list(zero.shape)} and "
            f"scales {list(scale.shape)}; expected those of GPTQ in {bits} bits"
        )
    order = None
    if groups in tensors.info or (settings.get("desc_act") and group != inputs):
        tensors.part(groups, words, ("int32", "int64"), (1,))
        order = sorted_inputs(tensors.peek(groups), inputs, group, f"{groups} in {packed.file}")
    quant_type = QuantType(bits, group, has_minima=not is_symmetric, is_ordered=order is not None)
    return StoredWeight(
        info=described(packed, (outputs, inputs), quant_type),
        parts=tuple(name for name in names if name in tensors.info),
        read=functools.partial(_read, module=module, settings=settings, order=order, file=packed.file),
        optional=_zero_bias(tensors, module),
    )


def _read(
    take: Take, *, module: str, settings: Mapping[str, Any], order: np.ndarray | None, file: pathlib.Path
) -> QuantizedTensor:
    bits = int(settings.get("bits", 4))
    middle = 2 ** (bits - 1)
    words, zeros, scales, _ = (f"{module}.{part}" for part in PARTS)
    codes = fields(np.ascontiguousarray(take(words).T), bits)
    codes = codes if order is None else codes[:, order]
    scales_by_output = np.ascontiguousarray(take(scales).T)
    points = _zero_points(take(zeros), bits, settings, f"{zeros} in {file}")[:, : len(codes)].T
    if settings.get("sym") is not True:
        return with_zeros(codes, scales_by_output, points, order)
    if not np.all(points == middle):
        raise ValueError(
            f"tensor {zeros} in {file} holds other zero points than {middle}, and the config states sym=true; set it "
            "to false in config.json if they are meant"
        )
    return QuantizedTensor(around_zero(codes, bits), floats(scales_by_output), order=order)


def sorted_inputs(groups: np.ndarray, inputs: int, group: int, where: str) -> np.ndarray | None:
    """Returns inputs sorted by their groups, None if they are already.

    Raises:
        ValueError: groups of different sizes, or not one for each input.
    """
    is_index = groups.size and groups.min() >= 0 and groups.max() < inputs // group
    sizes = np.bincount(groups) if is_index else ()
    if groups.shape != (inputs,) or not np.array_equal(sizes, np.full(inputs // group, group)):
        raise ValueError(f"tensor {where} does not part {inputs} inputs into groups of {group}; download it again")
    order = np.argsort(groups, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(inputs)) else order


def _zero_points(words: np.ndarray, bits: int, settings: Mapping[str, Any], where: str) -> np.ndarray:
    """Returns zero points `[groups, out]`.

    Version 1 stores them less 1. GPTQModel takes 1 from all numbers of a word in one subtraction, so that a 0 borrows
    from the next number, and adds it in the same way, which is exact. AutoGPTQ's words are spoilt by a 0, and its
    readers differ in what they make of it.
    """
    if "gptq_v2" in (settings.get("checkpoint_format"), settings.get("format")):
        return fields(words, bits)
    wraps = np.any(fields(words, bits) == 2**bits - 1)
    if wraps and "gptqmodel" not in str(table(settings.get("meta")).get("quantizer")).lower():
        raise ValueError(
            f"tensor {where} stores the zero point {2**bits - 1}, which is 0 less 1 wrapped around, and "
            "readers of GPTQ's version 1 differ in what it means; look for an upload in version 2 or by GPTQModel"
        )
    ones = np.full(32 // bits, 1, np.uint64) << np.arange(0, 32, bits, dtype=np.uint64)
    return fields(np.ascontiguousarray(words).view(np.uint32) + np.uint32(ones.sum()), bits)


def _zero_bias(tensors: RawTensors, module: str) -> tuple[str, ...]:
    """AutoGPTQ gives every linear map a bias; one of zeros changes nothing."""
    bias = f"{module}.bias"
    return (bias,) if bias in tensors.info and not np.any(tensors.peek(bias)) else ()
