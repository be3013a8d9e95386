"""bitsandbytes: NF4, and LLM.int8().

NF4     X.weight [out * in / 2, 1] uint8, two indices into the table to a byte, the first in the upper half
        X.weight.absmax [blocks], one scale for each 64 numbers of the flattened weight
        X.weight.quant_map [16], the table; X.weight.quant_state.bitsandbytes__nf4, JSON with shape and block size
int8    X.weight [out, in] int8, X.SCB [out] float32: W = q * SCB / 127

With `bnb_4bit_use_double_quant` absmax is uint8: nested_quant_map[absmax] * nested_absmax[its block] + nested_offset.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect
from eagle_jax.converters.quantized.unpacking import nibbles
from eagle_jax.ops.quantized import LEVELS, QuantType

TITLE = "bitsandbytes"
STATE = ".quant_state.bitsandbytes__"
NF4 = "nf4"


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other tables than NF4."""
    if entries.get("load_in_4bit"):
        expect(entries, TITLE, {"bnb_4bit_quant_type": (NF4,), "bnb_4bit_quant_storage": ("uint8", None)})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight of NF4, and every one of int8 with `SCB`."""
    for name in tensors.ending(f"{STATE}{NF4}"):
        yield name, _nf4(tensors, name)
    for module in tensors.ending(".SCB"):
        yield f"{module}.weight", _int8(tensors, module)


def _nf4(tensors: RawTensors, name: str) -> StoredWeight:
    info = tensors.part(name, f"{name}{STATE}{NF4}", ("uint8",), (1, 2))
    absmax, table = f"{name}.absmax", f"{name}.quant_map"
    tensors.part(f"{name}{STATE}{NF4}", name, ("uint8",), (1,))
    state = _state(tensors, f"{name}{STATE}{NF4}")
    (outputs, inputs), block = state["shape"], state["blocksize"]
    size = outputs * inputs
    nested = tensors.part(absmax, name, ("float32", "uint8"), (1,)).dtype == "uint8"
    if math.prod(info.shape) * 2 != size or size % 2 or tensors.info[absmax].shape != (-(-size // block),):
        raise ValueError(
            f"tensor {name} in {info.file} is {info.dtype} {list(info.shape)} with absmax "
            f"{list(tensors.info[absmax].shape)}; expected two of {outputs} x {inputs} numbers to a byte, "
            f"and one scale for each {block}"
        )
    tensors.part(table, name, ("float32",), (1,))
    group = math.gcd(block, inputs)

    def read(take: Take) -> QuantizedTensor:
        if not np.array_equal(take(table), np.asarray(LEVELS[NF4], np.float32)):
            raise ValueError(f"tensor {table} in {info.file} is another table than NF4's, which alone is read")
        octets = take(name).reshape(-1)
        codes = nibbles(octets >> 4 | octets << 4).reshape(outputs, inputs)
        scales = _nested(take, name, state) if nested else take(absmax)
        first = np.arange(0, size, group).reshape(outputs, -1)  # of each group in the flattened weight
        return QuantizedTensor(codes, scales[first // block])

    parts = (name, absmax, table, f"{name}{STATE}{NF4}", *(_check_nested(tensors, name, state) if nested else ()))
    shape = (outputs, inputs)
    return StoredWeight(info=described(info, shape, QuantType(4, group, NF4)), parts=parts, read=read)


def _state(tensors: RawTensors, name: str) -> Mapping[str, Any]:
    """Returns the entries of `quant_state`: shape and block size, and those of quantized scales."""
    try:
        state = json.loads(tensors.peek(name).tobytes())
        state = {"nested_blocksize": 256, "nested_offset": 0.0} | state
        numbers = [*state["shape"], state["blocksize"], state["nested_blocksize"]]
        is_valid = len(state["shape"]) == 2 and all(isinstance(number, int) and number > 0 for number in numbers)
        is_valid = is_valid and isinstance(state["nested_offset"], float | int)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"tensor {name} in {tensors.info[name].file} is not the JSON of a quant_state with shape and blocksize; "
            "download it again"
        )
    return state


def _check_nested(tensors: RawTensors, name: str, state: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the tensors of scales that are quantized themselves."""
    blocks = -(-tensors.info[f"{name}.absmax"].shape[0] // state["nested_blocksize"])
    names = f"{name}.nested_quant_map", f"{name}.nested_absmax"
    for part, size in zip(names, (256, blocks), strict=True):
        info = tensors.part(part, name, ("float32",), (1,))
        if info.shape != (size,):
            raise ValueError(f"tensor {part} in {info.file} has shape {list(info.shape)}; expected [{size}]")
    return names


def _nested(take: Take, name: str, state: Mapping[str, Any]) -> np.ndarray:
    """Scales that are quantized themselves; rounded twice in float32, as bitsandbytes does."""
    codes, table, scales = (take(name + end) for end in (".absmax", ".nested_quant_map", ".nested_absmax"))
    blocks = np.arange(len(codes)) // state["nested_blocksize"]
    return table[codes] * scales[blocks] + np.float32(state["nested_offset"])


def _int8(tensors: RawTensors, module: str) -> StoredWeight:
    weight, scale = f"{module}.weight", f"{module}.SCB"
    info = tensors.part(weight, scale, ("int8",))
    if tensors.part(scale, weight, ("float32",), (1,)).shape != info.shape[:1]:
        raise ValueError(
            f"tensor {scale} in {info.file} has shape {list(tensors.info[scale].shape)}; expected one scale for each "
            f"of {info.shape[0]} outputs"
        )
    layout = f"{module}.weight_format"
    parts = (weight, scale, *([layout] if layout in tensors.info else []))

    def read(take: Take) -> QuantizedTensor:
        if layout in tensors.info and np.any(take(layout)):
            raise ValueError(f"tensor {layout} in {info.file} states another layout than rows, which alone is read")
        return QuantizedTensor(take(weight), take(scale)[:, None] / np.float32(127))

    shape = (info.shape[0], info.shape[1])
    return StoredWeight(info=described(info, shape, QuantType(8)), parts=parts, read=read)
