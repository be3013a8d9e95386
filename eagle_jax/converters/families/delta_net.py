"""Gated DeltaNet in a `config.json`, and back."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.target import DeltaNet, LlamaConfig
from eagle_jax.converters.families.family import FULL, LINEAR, Entries
from eagle_jax.converters.hf.values import integer

# Fields of `DeltaNet`, and their keys.
_SIZES: Mapping[str, str] = {
    "num_key_heads": "linear_num_key_heads",
    "num_value_heads": "linear_num_value_heads",
    "key_head_dim": "linear_key_head_dim",
    "value_head_dim": "linear_value_head_dim",
    "conv_kernel": "linear_conv_kernel_dim",
}
KEYS = frozenset({*_SIZES.values(), "layer_types", "full_attention_interval"})
ABSENT: Mapping[str, Any] = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}


def read(entries: Entries) -> dict[str, Any]:
    """Reads Qwen3.5's entries."""
    return {"delta_net": DeltaNet(**_fields(entries))}


def read_fused(entries: Entries) -> dict[str, Any]:
    """Reads Qwen3-Next's entries, whose projections are fused."""
    return {"delta_net": DeltaNet(**_fields(entries), fused=True)}


def write(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that `read` reads."""
    net = config.delta_net
    if net is None:
        return {}
    types = [LINEAR if config.is_recurrent(i) else FULL for i in range(config.num_hidden_layers)]
    return {key: getattr(net, name) for name, key in _SIZES.items()} | {"layer_types": types}


def _fields(entries: Entries) -> dict[str, Any]:
    return {name: integer(entries, key) for name, key in _SIZES.items()} | {"layers": _layers(entries)}


def _layers(entries: Entries) -> tuple[int, ...]:
    """Returns the layers without attention: named one by one, or all but every `full_attention_interval`-th."""
    count, types = integer(entries, "num_hidden_layers"), entries.get("layer_types")
    if types is None:
        step = integer(entries, "full_attention_interval")
        if step < 1:
            raise ValueError(f"full_attention_interval={step}; expected at least 1")
        return tuple(i for i in range(count) if (i + 1) % step)
    if not isinstance(types, list) or len(types) != count or any(kind not in (FULL, LINEAR) for kind in types):
        raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {LINEAR!r} for each of {count} layers")
    return tuple(i for i, kind in enumerate(types) if kind == LINEAR)
