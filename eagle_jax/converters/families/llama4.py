"""Converts the keys of `config.json` that only Llama 4 has, in both directions."""

from typing import Any

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families.facts import no_rope_layers
from eagle_jax.converters.families.family import CHUNKED, FULL, Entries
from eagle_jax.converters.hf.values import flag, integer, number

KEYS = frozenset({"attention_bias", "intermediate_size_mlp", "use_qk_norm", "no_rope_layers", "layer_types"}) | {
    *("attention_chunk_size", "attn_temperature_tuning", "floor_scale", "attn_scale"),
    *("moe_layers", "interleave_moe_layer_step", "no_rope_layer_interval"),
}


def read(entries: Entries) -> dict[str, Any]:
    """Reads Llama 4's entries.

    Dense layers have a width of their own; layers that rotate see a chunk, the others scale their queries.
    """
    tuned = flag(entries, "attn_temperature_tuning", True)
    return _chunks(entries) | {
        "intermediate_size": integer(entries, "intermediate_size_mlp"),
        "qk_norm": flag(entries, "use_qk_norm", True),
        "no_rope_query_beta": number(entries, "attn_scale") if tuned else 0.0,
        "no_rope_query_step": integer(entries, "floor_scale") if tuned else 1,
    }


def write(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that `read` and `hf_experts.llama4` read."""
    layers, experts, tuned = range(config.num_hidden_layers), config.experts, bool(config.no_rope_query_beta)
    scale = {"attn_scale": config.no_rope_query_beta, "floor_scale": config.no_rope_query_step} if tuned else {}
    return scale | {
        "attn_temperature_tuning": tuned,
        "attention_chunk_size": config.sliding_window,
        "layer_types": [FULL if config.window(i) is None else CHUNKED for i in layers],
        "intermediate_size_mlp": config.intermediate_size,
        "intermediate_size": config.intermediate_size if experts is None else experts.moe_intermediate_size,
        "moe_layers": [i for i in layers if config.is_sparse(i)],
        "use_qk_norm": config.qk_norm,
    }


def _chunks(entries: Entries) -> dict[str, Any]:
    layers, types = integer(entries, "num_hidden_layers"), entries.get("layer_types")
    none = {"sliding_window": None, "full_attention_layers": (), "chunked": False}
    size, full = entries.get("attention_chunk_size"), no_rope_layers(entries)
    if types is not None:
        if not isinstance(types, list) or len(types) != layers or any(kind not in (FULL, CHUNKED) for kind in types):
            raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {CHUNKED!r} for each of {layers} layers")
        full = tuple(i for i, kind in enumerate(types) if kind == FULL)
        if size is None and len(full) < layers:
            raise ValueError(f"layer_types names {CHUNKED!r}, and there is no attention_chunk_size; expected one")
    if size is None or len(full) == layers:
        return none
    return {"sliding_window": integer(entries, "attention_chunk_size"), "full_attention_layers": full, "chunked": True}
