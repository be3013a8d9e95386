"""Converts the parts of `config.json` and the tensors that only Gemma 4 has, in both directions."""

from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.configs.target import ByLayer, Experts, LlamaConfig
from eagle_jax.converters.families.facts import layer_types
from eagle_jax.converters.families.family import FULL, WINDOWED, Entries
from eagle_jax.converters.hf import rope
from eagle_jax.converters.hf.values import flag, integer

MOE = frozenset({"enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"})
OF_LAYERS = frozenset({"hidden_size_per_layer_input", "vocab_size_per_layer_input"})
_HEADS = frozenset({"global_head_dim", "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v"})
KEYS = frozenset({"attention_bias", "sliding_window", "layer_types", "final_logit_softcapping"}) | _HEADS
KEYS |= {"num_kv_shared_layers", "use_double_wide_mlp"}
ABSENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {
        WINDOWED: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "global_head_dim": 512,
    "num_kv_shared_layers": 0,
}
ABSENT_OF_LAYERS: Mapping[str, Any] = {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256}
ALWAYS: Mapping[str, Any] = {
    "norms": "around",
    "activation": "gelu_tanh",
    "qk_norm": True,
    "v_norm": True,
    "attention_multiplier": 1.0,
}
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (None, "vision"),  # tokens of images see each other; those of text do not
}

# Names within a layer beyond Llama's, and ours.
TENSORS: Mapping[str, str] = {
    "layer_scalar": "layer_scalar",
    "per_layer_input_gate.weight": "layer_input/gate/weight",
    "per_layer_projection.weight": "layer_input/projection/weight",
    "post_per_layer_input_norm.weight": "layer_input/norm/scale",
    "router.scale": "mlp/gate_scale",
    "router.per_expert_scale": "mlp/expert_scale",
    "pre_feedforward_layernorm_2.weight": "mlp/input_norm/scale",
    "post_feedforward_layernorm_1.weight": "mlp/shared_norm/scale",
    "post_feedforward_layernorm_2.weight": "mlp/experts_norm/scale",
}
# Tensors that hold something of every layer.
LAYER_INPUTS: Mapping[str, str] = {
    "model.embed_tokens_per_layer.weight": "layer_inputs/embed_tokens/embedding",
    "model.per_layer_model_projection.weight": "layer_inputs/projection/weight",
    "model.per_layer_projection_norm.weight": "layer_inputs/norm/scale",
}


def unread(config: LlamaConfig) -> Iterator[str]:
    """Yields patterns of the keys and values in files of layers that attend to those of other layers."""
    for i in range(config.num_hidden_layers):
        if config.kv_of(i) == "none":
            yield rf"model\.layers\.{i}\.self_attn\.[kv]_(proj|norm)\.(weight|bias)"


def experts(entries: Entries) -> Experts | None:
    """Reads the experts, which are in parallel with the MLP of every layer; None if there are none."""
    if not flag(entries, "enable_moe_block", False):
        return None
    return Experts(
        num_experts=integer(entries, "num_experts"),
        num_experts_per_tok=integer(entries, "top_k_experts"),
        moe_intermediate_size=integer(entries, "moe_intermediate_size"),
        norm_topk_prob=True,
        parallel_mlp=True,
        router_scale=True,
        expert_scale=True,
    )


def read(entries: Entries) -> dict[str, Any]:
    """Reads Gemma 4's entries. The last layer never has a window, even if the entries give it one."""
    layers, types = integer(entries, "num_hidden_layers"), layer_types(entries)
    step = integer(entries, "sliding_window_pattern")
    types = [WINDOWED if (i + 1) % step else FULL for i in range(layers)] if types is None else types
    if len(types) != layers:
        raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {WINDOWED!r} for each of {layers} layers")
    full = tuple(i for i, kind in enumerate(types) if kind == FULL or i == layers - 1)
    has_windows, context = len(full) < layers, integer(entries, "max_position_embeddings")
    local = rope.rope_from_hf(rope.of_local_layers(entries), context)
    return {
        "embedding_multiplier": integer(entries, "hidden_size") ** 0.5,
        "sliding_window": integer(entries, "sliding_window") if has_windows else None,
        "full_attention_layers": full if has_windows else (),
        "local_rope": local if has_windows else None,
        "by_layer": _by_layer(entries, full),
    }


def write(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that `read` and `experts` read."""
    part, moe = config.by_layer, config.experts
    if part is None:
        return {}
    routed = {} if moe is None else {"num_experts": moe.num_experts, "top_k_experts": moe.num_experts_per_tok}
    return (
        write_heads(config)
        | routed
        | {
            "hidden_size_per_layer_input": part.input_size,
            "vocab_size_per_layer_input": part.input_vocab_size or config.vocab_size,
            "enable_moe_block": moe is not None,
        }
    )


def write_heads(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that `read` reads of a model without per-layer embeddings."""
    part = config.by_layer
    if part is None:
        return {}
    full = rope.rope_to_hf(config.rope, config.max_position_embeddings)
    settings = {"rope_type": "default", **(full.pop("rope_scaling") or {}), **full}
    if config.rope.factor == 1:  # transformers' rope of this kind reads it, and warns of it
        settings.pop("factor", None)
    ropes = {FULL: settings, WINDOWED: {"rope_type": "default", "rope_theta": (config.local_rope or config.rope).theta}}
    return {
        "rope_parameters": ropes,
        "sliding_window": config.sliding_window or ABSENT["sliding_window"],
        "global_head_dim": part.head_dim,
        "num_global_key_value_heads": part.num_key_value_heads,
        "attention_k_eq_v": part.keys_as_values,
        "num_kv_shared_layers": part.num_kv_shared_layers,
        "use_double_wide_mlp": part.wide_mlp,
    }


def _by_layer(entries: Entries, full: tuple[int, ...]) -> ByLayer:
    size, shares = integer(entries, "hidden_size_per_layer_input", 0), integer(entries, "num_kv_shared_layers")
    return ByLayer(
        **_heads(entries, full),
        keys_as_values=flag(entries, "attention_k_eq_v", False),
        num_kv_shared_layers=shares,
        wide_mlp=flag(entries, "use_double_wide_mlp", False) and shares > 0,
        input_size=size,
        input_vocab_size=integer(entries, "vocab_size_per_layer_input") if size else 0,
    )


def _heads(entries: Entries, full: tuple[int, ...]) -> dict[str, Any]:
    """Returns the size and number of heads in layers without a window.

    Published files state them for all such layers, transformers writes them layer by layer.
    """
    windowed = {key: integer(entries, key) for key in ("head_dim", "num_key_value_heads")}
    layers = entries.get("per_layer_config")
    if layers is None:
        heads = entries.get("num_global_key_value_heads") if flag(entries, "attention_k_eq_v", False) else None
        kv = {} if heads is None else {"num_key_value_heads": integer(entries, "num_global_key_value_heads")}
        return windowed | {"head_dim": integer(entries, "global_head_dim")} | kv
    changes = layers.values() if isinstance(layers, Mapping) else [None]
    if not all(isinstance(change, Mapping) and change.keys() <= windowed.keys() for change in changes):
        raise ValueError(f"per_layer_config={layers!r}; expected head_dim and num_key_value_heads by layer")
    if not all(str(key).isdecimal() for key in layers):
        raise ValueError(f"per_layer_config={layers!r}; expected the numbers of layers as keys")
    numbered = {
        int(key): dict(change) for key, change in layers.items()
    }  # transformers writes "05" where there are ten and more
    by_layer = [windowed | numbered.get(i, {}) for i in range(integer(entries, "num_hidden_layers"))]
    of_full = by_layer[full[-1]]
    if any(change != (of_full if i in full else windowed) for i, change in enumerate(by_layer)):
        raise ValueError(f"per_layer_config={layers!r}; expected changes in layers without a window, the same in each")
    return {key: integer(of_full, key) for key in windowed}
