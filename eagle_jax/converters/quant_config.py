"""The entry of `config.json` for quantized weights: reads any format's, writes that of compressed-tensors.

The tensors show which weights are quantized, and in what groups. The config is read to refuse unsupported variants of a
format, and written for other readers.
"""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.converters.names import Rule, slots
from eagle_jax.converters.quantized import checked_format, stated_in
from eagle_jax.converters.quantized.statement import KEYS, MLX_KEY
from eagle_jax.models.quant import is_matrix
from eagle_jax.ops.quantized import QuantArray, QuantType

METHOD, FORMAT = "compressed-tensors", "pack-quantized"


def without_quantization(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` without those about quantization.

    Raises:
        ValueError: the entries name an unsupported method or variant.
    """
    quantization = stated_in(entries)
    if quantization is None:
        return dict(entries)
    checked_format(quantization)
    return {key: value for key, value in entries.items() if key not in (MLX_KEY, *KEYS)}


def params_entry(rules: Iterable[Rule], params: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry of `config.json` for a model's quantized weights; empty if it has none."""
    return matrices_entry(
        {
            key: slot.leaf.quant_type if isinstance(slot.leaf, QuantArray) else None
            for path, slot in slots(rules, params).items()
            if is_matrix(path)
            for key in slot.keys
        }
    )


def matrices_entry(matrices: Mapping[str, QuantType | None]) -> dict[str, Any]:
    """Returns the entry of `config.json` for matrices, given their types by tensor name; empty if none is quantized."""
    modules: dict[QuantType | None, list[str]] = collections.defaultdict(list)
    for key, quant_type in matrices.items():
        modules[quant_type].append(key.removesuffix(".weight"))
    floats = modules.pop(None, [])
    if not modules:
        return {}
    if not any("lm_head" in names for names in (floats, *modules.values())):
        floats.append("lm_head")  # tied to the embedding; transformers would look for a quantized module
    by_count = sorted(
        ((quant_type, names) for quant_type, names in modules.items() if quant_type), key=lambda group: -len(group[1])
    )
    groups = [_group(by_count[0][0], ["Linear"]), *(_group(*group) for group in by_count[1:])]
    return {
        KEYS[0]: {
            "quant_method": METHOD,
            "format": FORMAT,
            "quantization_status": "compressed",
            "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
            "ignore": floats,
        }
    }


def _group(quant_type: QuantType, targets: list[str]) -> dict[str, Any]:
    weights = {
        "num_bits": quant_type.bits,
        "type": "int",
        "symmetric": not quant_type.has_minima,
        "strategy": "channel" if quant_type.group is None else "group",
        "group_size": quant_type.group,
        "dynamic": False,
    }
    return {"targets": targets, "weights": weights, "input_activations": None, "output_activations": None}
