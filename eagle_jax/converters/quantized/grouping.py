"""Finds the several tensors that make up each quantized weight of a folder, and presents them as one."""

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

# Formats by the method name that files state.
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

# Scales of activations and of the cache, which are not quantized here.
_ACTIVATIONS = re.compile(
    r".*\.(input_scale|input_zero_point|input_global_scale|input_scale_ub|activation_scale|output_scale|"
    r"[qkv]_bmm_scale|prob_output_scale|q_scale|q_zero_point|q_global_scale)"
)
_CACHE = re.compile(r".*\.((k|v|kv)_(scale|zero_point|global_scale)|[kv]_proj\.output_scale)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedTensors:
    """The tensors of a folder, those of each quantized weight as one.

    Attributes:
        info: every tensor by its name; a quantized weight is one.
        weights: how the quantized ones are stored.
        optional: tensors without effect, such as biases of zeros; the model need not have a parameter for them.
        notes: sentences about what is not done as the folder states.
    """

    info: Mapping[str, TensorInfo]
    weights: Mapping[str, StoredWeight]
    optional: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def checked_format(statement: Statement) -> Format:
    """Returns the format that a folder states.

    Raises:
        ValueError: the method, or this variant of it, is not supported.
    """
    if statement.method not in FORMATS:
        bits = next((statement.entries[key] for key in ("bits", "w_bit", "nbits") if key in statement.entries), None)
        titles = dict.fromkeys(format.TITLE for format in FORMATS.values())
        raise ValueError(
            f"{statement.where}: the weights are quantized{'' if bits is None else f' in {bits} bits'} by "
            f"{statement.method}, which is not supported; use an upload in floating point, GGUF, or one of "
            f"{', '.join(titles)}"
        )
    format = FORMATS[statement.method]
    try:
        format.check(statement.entries)
    except ValueError as error:
        raise ValueError(f"{statement.where}: {error}") from error
    return format


def group_weights(folder: pathlib.Path, tensors: RawTensors) -> GroupedTensors:
    """Returns the tensors of a folder with each quantized weight as one, by the name that it has in a folder of floats.

    The format is the one that the folder states, or else the one that the tensors show. If `config.json` states an
    unsupported method, the tensors are returned unchanged; reading the config raises the error.

    Raises:
        ValueError: tensors that do not fit together, or that the folder states not to be quantized.
    """
    statement = stated_by(folder)
    format = _format_of_tensors(folder, tensors) if statement is None else _stated_format(statement)
    if format is None:
        return GroupedTensors(info=tensors.info, weights={})
    weights = dict(format.find(tensors, {} if statement is None else statement.entries))
    if statement is not None:
        for name in weights:
            _check_left_out(name, weights[name], statement, format.TITLE)
    return _grouped(tensors, weights, statement, format.TITLE)


def _stated_format(statement: Statement) -> Format | None:
    """Returns the format that a folder states; None for one that `config.json` states and that is not supported."""
    try:
        return checked_format(statement)
    except ValueError:
        if statement.is_separate_file:
            raise
        return None


def _format_of_tensors(folder: pathlib.Path, tensors: RawTensors) -> Format | None:
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


def _check_left_out(name: str, weight: StoredWeight, statement: Statement, title: str) -> None:
    module = name.removesuffix(".weight")
    key = statement.leaves_out(module)
    if key is not None:
        raise ValueError(
            f"{statement.where} has {module} in {key}, and {weight.info.file} has it quantized by {title}; correct the "
            "list if the file is right"
        )


def _grouped(
    tensors: RawTensors, weights: Mapping[str, StoredWeight], statement: Statement | None, title: str
) -> GroupedTensors:
    parts = {part for weight in weights.values() for part in weight.parts}
    ignored = {name for name in tensors.info if _CACHE.fullmatch(name) or _ACTIVATIONS.fullmatch(name)} - parts
    has_cache_scales = any(_CACHE.fullmatch(name) for name in ignored)
    has_activation_scales = any(not _CACHE.fullmatch(name) for name in ignored)
    notes = _notes(
        title,
        activations=has_activation_scales or statement is not None and statement.quantizes_activations,
        cache=has_cache_scales or statement is not None and statement.quantizes_cache,
    )
    info: dict[str, Any] = {name: entry for name, entry in tensors.info.items() if name not in parts | ignored}
    info |= {name: weight.info for name, weight in weights.items()}
    optional = frozenset(name for weight in weights.values() for name in weight.optional)
    return GroupedTensors(info=info, weights=weights, optional=optional, notes=tuple(notes))


def _notes(title: str, *, activations: bool, cache: bool) -> Iterator[str]:
    if activations:
        yield (
            f"{title} model made for quantized activations: activations stay in floating point here, unless "
            "EAGLE_JAX_ACTIVATIONS sets something else on CPUs"
        )
    if cache:
        yield f"{title} model made for a quantized KV cache: the cache stays in the model's dtype here"
