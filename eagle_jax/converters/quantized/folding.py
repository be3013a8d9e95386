"""The tensors of a folder with each quantized weight as one."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.converters.quantized import (
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    mlx,
    modelopt,
    mxfp4,
)
from eagle_jax.converters.quantized.base import Format, RawTensors, StoredWeight
from eagle_jax.converters.quantized.statement import Statement, stated_by
from eagle_jax.converters.tensor_file import TensorInfo

# By what files call the method.
FORMATS: Mapping[str, Format] = {
    "awq": awq,
    "gptq": gptq,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "mxfp4": mxfp4,
    "mlx": mlx,
    "bitsandbytes": bitsandbytes,
}
# What people call the methods that are not read and whose names in files are others.
TITLES = {"hqq": "HQQ", "aqlm": "AQLM", "auto-round": "AutoRound", "quip": "QuIP", "vptq": "VPTQ", "eetq": "EETQ"}

# Scales of activations and of the cache, which are not rounded here.
_ACTIVATIONS = re.compile(
    r".*\.(input_scale|input_zero_point|input_global_scale|input_scale_ub|activation_scale|output_scale|"
    r"[qkv]_bmm_scale|prob_output_scale|q_scale|q_zero_point|q_global_scale)"
)
_CACHE = re.compile(r".*\.((k|v|kv)_(scale|zero_point|global_scale)|[kv]_proj\.output_scale)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folded:
    """The tensors of a folder, quantized weights folded.

    Attributes:
        info: every tensor by its name; a quantized weight is one.
        weights: how the quantized ones are stored.
        optional: tensors that change nothing, and that a model may not know.
        notes: sentences about what is not done as the folder states.
    """

    info: Mapping[str, TensorInfo]
    weights: Mapping[str, StoredWeight]
    optional: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def checked_format(statement: Statement) -> Format:
    """Returns the format that a folder states.

    Raises:
        ValueError: one that is not read, or a variant of one that is not read.
    """
    if statement.method not in FORMATS:
        bits = next((statement.entries[key] for key in ("bits", "w_bit", "nbits") if key in statement.entries), None)
        method, read = TITLES.get(statement.method, statement.method), [format.TITLE for format in FORMATS.values()]
        raise ValueError(
            f"{statement.where}: the weights are quantized{'' if bits is None else f' in {bits} bits'} by {method}, "
            f"which is not read; expected floats, a GGUF file, or one of {', '.join(dict.fromkeys(read))}: look for "
            "another upload"
        )
    format = FORMATS[statement.method]
    try:
        format.check(statement.entries)
    except ValueError as error:
        raise ValueError(f"{statement.where}: {error}") from error
    return format


def fold(folder: pathlib.Path, tensors: RawTensors) -> Folded:
    """Returns the tensors of a folder with each quantized weight as one, by the name that it has in a folder of floats.

    The format is the one that the folder states, or else the one that the tensors show. What `config.json` states and
    is not read leaves all as it is: whoever reads the config refuses it.

    Raises:
        ValueError: tensors that do not fit together, or that the folder states not to be quantized.
    """
    statement = stated_by(folder)
    format = _shown(folder, tensors) if statement is None else _readable(statement)
    if format is None:
        return Folded(info=tensors.info, weights={})
    weights = dict(format.find(tensors, {} if statement is None else statement.entries))
    for name in weights:
        _check_left_out(name, weights[name], statement, format.TITLE)
    return _folded(tensors, weights, statement, format.TITLE)


def _readable(statement: Statement) -> Format | None:
    """Returns the format that a folder states; None for one that `config.json` states and that is not read."""
    try:
        return checked_format(statement)
    except ValueError:
        if statement.is_separate_file:
            raise
        return None


def _shown(folder: pathlib.Path, tensors: RawTensors) -> Format | None:
    """Returns the format that tensors show by themselves; None for a folder of floats."""
    names = tensors.info
    if any(name.endswith("weight_packed") for name in names):
        return compressed_tensors
    if any(name.endswith(mxfp4.BLOCKS) for name in names):
        return mxfp4
    if any(info.dtype == fp8.DTYPE for info in names.values()):
        return fp8
    unstated = next((name for name in names if name.endswith((".qweight", ".SCB", ".quant_map"))), None)
    if unstated is not None:
        raise ValueError(
            f"{names[unstated].file} has the quantized tensor {unstated}, and {folder / 'config.json'} has no "
            "quantization_config; download it again"
        )
    return None


def _check_left_out(name: str, weight: StoredWeight, statement: Statement | None, title: str) -> None:
    module = name.removesuffix(".weight")
    key = None if statement is None else statement.leaves_out(module)
    if statement is not None and key is not None:
        raise ValueError(
            f"{statement.where} has {module} in {key}, and {weight.info.file} has it quantized by {title}; correct the "
            "list if the file is right"
        )


def _folded(
    tensors: RawTensors, weights: Mapping[str, StoredWeight], statement: Statement | None, title: str
) -> Folded:
    parts = {part for weight in weights.values() for part in weight.parts}
    aside = {name for name in tensors.info if _CACHE.fullmatch(name) or _ACTIVATIONS.fullmatch(name)} - parts
    cache = statement is not None and statement.rounds_cache or any(_CACHE.fullmatch(name) for name in aside)
    rows = statement is not None and statement.rounds_activations or any(not _CACHE.fullmatch(name) for name in aside)
    info: dict[str, Any] = {name: entry for name, entry in tensors.info.items() if name not in parts | aside}
    info |= {name: weight.info for name, weight in weights.items()}
    optional = frozenset(name for weight in weights.values() for name in weight.optional)
    return Folded(info=info, weights=weights, optional=optional, notes=tuple(_notes(title, rows=rows, cache=cache)))


def _notes(title: str, *, rows: bool, cache: bool) -> Iterator[str]:
    if rows:
        yield (
            f"{title} asks for rounded activations: its weights are read, and activations stay floats, but for what "
            "EAGLE_JAX_ACTIVATIONS chooses on CPUs"
        )
    if cache:
        yield f"{title} asks for a rounded cache of keys and values: it stays in the dtype of the model"
