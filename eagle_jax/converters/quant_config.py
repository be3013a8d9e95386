"""What `config.json` says of rounded weights: the `quantization_config` of compressed-tensors, in and out.

The tensors tell what is rounded, and in what groups. The config is read to refuse what their numbers do not show
(rounded activations, codes that mean something else), and written for others' readers.
"""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.converters.names import Rule, slots
from eagle_jax.models.quant import is_matrix
from eagle_jax.ops.quantized import QuantArray, QuantType

KEYS = ("quantization_config", "compression_config")
METHOD, FORMAT = "compressed-tensors", "pack-quantized"
# What people call the methods whose names in files are others.
PUBLISHED_AS = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "fp8": "FP8",
    "mxfp4": "MXFP4",
    "bitsandbytes": "bitsandbytes",
    "modelopt": "NVIDIA's ModelOpt",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
}


def without(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `config.json` without those about rounding, if they say what is read here.

    Raises:
        ValueError: another method's, by its name, or compressed-tensors' of a kind that is not read.
    """
    rest = dict(entries)
    if isinstance(rest.get("quantization"), Mapping):  # MLX states it under both names
        raise _unread("quantization", "MLX", rest["quantization"])
    for key in KEYS:
        stated = entries.get(key)
        if isinstance(stated, Mapping) and stated.get("quant_method", METHOD) == METHOD and "config_groups" in stated:
            _check(key, stated)
            del rest[key]
        elif isinstance(stated, Mapping) and stated:
            method = str(stated.get("quant_method", "a method that it does not name"))
            raise _unread(key, PUBLISHED_AS.get(method, method), stated)
    return rest


def _unread(key: str, method: str, stated: Mapping[str, Any]) -> ValueError:
    bits = next((stated[name] for name in ("bits", "w_bit", "nbits", "weight_bits") if name in stated), None)
    width = "" if bits is None else f" in {bits} bits"
    return ValueError(
        f"{key}: the weights are quantised{width} by {method}, which is not read here; expected floats, integers of "
        "compressed-tensors, or a GGUF file: look for one of those among the model's other uploads"
    )


def describing(rules: Iterable[Rule], params: dict[str, Any]) -> dict[str, Any]:
    """The entry of `config.json` for a model with rounded weights; none for one of floats."""
    return entry(
        {
            key: slot.leaf.quant_type if isinstance(slot.leaf, QuantArray) else None
            for path, slot in slots(rules, params).items()
            if is_matrix(path)
            for key in slot.keys
        }
    )


def entry(matrices: Mapping[str, QuantType | None]) -> dict[str, Any]:
    """The entry for matrices, by their tensors' names, and what they are rounded to; none if none is."""
    modules: dict[QuantType | None, list[str]] = collections.defaultdict(list)
    for key, quant_type in matrices.items():
        modules[quant_type].append(key.removesuffix(".weight"))
    floats = modules.pop(None, [])
    if not modules:
        return {}
    if not any("lm_head" in of for of in (floats, *modules.values())):
        floats.append("lm_head")  # tied to the embedding: a module of its own in transformers, which would look for one
    most, *others = sorted(
        ((quant_type, of) for quant_type, of in modules.items() if quant_type), key=lambda one: -len(one[1])
    )
    groups = [_group(most[0], ["Linear"]), *(_group(*other) for other in others)]
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


def _check(key: str, stated: Mapping[str, Any]) -> None:
    groups = stated["config_groups"]
    if stated.get("format") != FORMAT or stated.get("kv_cache_scheme") or not isinstance(groups, Mapping):
        raise ValueError(
            f"{key} has format={stated.get('format')!r} and kv_cache_scheme={stated.get('kv_cache_scheme')!r}; "
            f"expected weights alone, in format {FORMAT!r}"
        )
    for name, group in groups.items():
        weights = group.get("weights") or {}
        unlike = {
            label: value
            for label, value, expected in (
                ("num_bits", weights.get("num_bits"), (4, 8)),
                ("type", weights.get("type", "int"), ("int",)),
                ("symmetric", weights.get("symmetric", True), (True,)),
                ("actorder", weights.get("actorder"), (None, False, "weight", "static")),
                ("input_activations", group.get("input_activations"), (None,)),
                ("output_activations", group.get("output_activations"), (None,)),
            )
            if value not in expected
        }
        if unlike:
            listed = ", ".join(f"{what}={value!r}" for what, value in unlike.items())
            raise ValueError(
                f"{key} has {listed} in {name}; expected weights alone, rounded to integers of 4 or 8 bits around 0"
            )
