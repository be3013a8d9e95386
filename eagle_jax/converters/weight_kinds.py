"""Describes how each kind of tensor of a quantized model is stored, such as all `q_proj`."""

import collections
import re
from collections.abc import Mapping

from eagle_jax.converters.tensor_file import TensorInfo


def weight_kinds(info: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Returns how each kind of tensor of quantized files is stored, joining kinds stored alike; {} for float files.

    Example: `{"q_proj, k_proj": "Q4_K, kept as int4, ...", "v_proj": "Q6_K, ... (15 of 30); Q4_K, ... (15 of 30)"}`.
    """
    if not any(header.block_type or header.quant_type for header in info.values()):
        return {}
    by_kind: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, header in info.items():
        by_kind[_kind(name)][header.block_type or str(header.quant_type or header.dtype)] += 1
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    for kind, types in by_kind.items():
        kinds[_text(types)].append(kind)
    return {", ".join(names): text for text, names in kinds.items()}


def _kind(name: str) -> str:
    """Returns the module's name without numbers of layers and experts, such as `q_proj`; for its bias `q_proj.bias`."""
    *_, module, parameter = re.sub(r"\.\d+(?=\.)", "", f".{name}").split(".")
    return module if parameter == "weight" else f"{module}.{parameter}".lstrip(".")


def _text(types: Mapping[str, int]) -> str:
    if len(types) == 1:
        return next(iter(types))
    total = sum(types.values())
    return "; ".join(f"{text} ({count} of {total})" for text, count in types.items())
