"""Reads what only Gemma 4's GGUF files have: per-layer metadata, and settings that tensors imply."""

from collections.abc import Collection, Mapping
from typing import Any

from eagle_jax.converters.families.family import FULL, WINDOWED
from eagle_jax.converters.gguf.file import GgufFile, plain
from eagle_jax.converters.gguf.rope import SETTINGS, rotated_part

ARCHITECTURE = "gemma4"
_PATTERN = "attention.sliding_window_pattern"
_SAME = (  # entries that state the size of a head: in layers without a window, and with one
    ("attention.key_length", "attention.value_length", "rope.dimension_count"),
    ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"),
)
_COUNTS = {
    "expert_count": "num_experts",
    "expert_used_count": "top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}


def split(file: GgufFile, metadata: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the entries that other architectures have too, and Gemma 4's own under the names of `config.json`.

    Args:
        stated: entries about the model, by their names after the architecture's.
        names: the file's tensors, as a HuggingFace checkpoint calls them.

    Raises:
        KeyError: an entry is missing.
        ValueError: entries that do not fit each other.
    """
    layers, remaining = metadata["block_count"], dict(metadata)
    if scaling := {name: remaining[name] for name in SETTINGS if remaining.get(name, "none") != "none"}:
        raise ValueError(f"{file.path} has {scaling} in {ARCHITECTURE}; expected no rope scaling")
    windowed = _by_layer(file, _PATTERN, remaining.pop(_PATTERN), layers, bool)
    kv_heads = _by_layer(file, "attention.head_count_kv", remaining["attention.head_count_kv"], layers, int)
    widths = _by_layer(file, "feed_forward_length", remaining["feed_forward_length"], layers, int)
    shared, size = remaining.pop("attention.shared_kv_layers", 0), remaining.pop("embedding_length_per_layer_input", 0)
    full_dim, windowed_dim = (_head_dim(file, remaining, same) for same in _SAME)
    of_full = next((heads for heads, has in zip(kv_heads, windowed, strict=True) if not has), kv_heads[0])
    windowed_heads = [heads for heads, is_windowed in zip(kv_heads, windowed, strict=True) if is_windowed]
    remaining["attention.head_count_kv"] = next(iter(windowed_heads), kv_heads[0])
    remaining |= {"attention.key_length": windowed_dim, "feed_forward_length": widths[0]}
    is_wide = widths[-1] != widths[0]
    expected = [widths[0] * (2 if is_wide and i >= layers - shared else 1) for i in range(layers)]
    if widths != expected:
        raise ValueError(
            f"{file.path} has {ARCHITECTURE}.feed_forward_length {widths}; expected {expected}: one width, or twice as "
            "much in layers that attend to keys and values of others"
        )
    experts = {key: remaining.pop(name) for name, key in _COUNTS.items() if name in remaining}
    ropes = {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": rotated_part(file)}
        | {"rope_theta": plain(remaining.pop("rope.freq_base"))},
        WINDOWED: {"rope_type": "default", "rope_theta": plain(remaining.pop("rope.freq_base_swa"))},
    }
    values = [
        f"model.layers.{i}.self_attn.v_proj.weight" for i, has in enumerate(windowed) if not has and i < layers - shared
    ]
    tables = file.tensors.get("per_layer_token_embd.weight")
    return remaining, experts | {
        "layer_types": [WINDOWED if has else FULL for has in windowed],
        "global_head_dim": full_dim,
        "num_global_key_value_heads": of_full,
        "attention_k_eq_v": not any(name in names for name in values),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": is_wide,
        "hidden_size_per_layer_input": size,
        "vocab_size_per_layer_input": 0 if tables is None else tables.shape[0],
        "enable_moe_block": bool(experts.get("num_experts")),
        "rope_parameters": ropes,
    }


def _by_layer(file: GgufFile, name: str, value: Any, layers: int, kind: type) -> list[Any]:
    """Returns one value for each layer, where one may stand for all of them."""
    values = [value] * layers if kind is int and type(value) is int else value
    if not isinstance(values, list) or len(values) != layers or any(type(one) is not kind for one in values):
        raise ValueError(f"{file.path} has {ARCHITECTURE}.{name} {value!r}; expected one for each of {layers} layers")
    return values


def _head_dim(file: GgufFile, remaining: dict[str, Any], names: tuple[str, ...]) -> int:
    """Removes the entries that state the size of a head from `left`, and returns the size."""
    sizes = {name: remaining.pop(name) for name in names if name in remaining}
    if names[0] not in sizes:
        raise KeyError(f"{ARCHITECTURE}.{names[0]}")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{file.path} has {sizes} in {ARCHITECTURE}; expected these to agree")
    return sizes[names[0]]
