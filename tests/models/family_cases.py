"""Families that are compared with transformers' own classes: a row each, with the facts that must not be left out."""

from collections.abc import Mapping
from typing import Any

from family_changes import Change, by_layer, experts, llamas, plain, rope
from parity_cases import TARGETS, VOCABULARY, Case

from eagle_jax.configs.target import LlamaConfig

PROMPT, NEW = 13, 64
FULL, WINDOWED, LINEAR = "full_attention", "sliding_attention", "linear_attention"

_LLAMA = {key: value for key, value in TARGETS[0].entries.items() if key not in ("architectures", "rope_theta")}
_BASE = _LLAMA | {"max_position_embeddings": 128}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# With this context and theta rounding moves the bands, though a head has only four pairs to turn.
_YARN_BANDS = _YARN | {"original_max_position_embeddings": 64, "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False}
_LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 2.0, 4.0]}


_MULTIPLIERS = {
    "attention_multiplier": 0.6,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
}
_SCALES = {name: llamas(name) for name in _MULTIPLIERS}
_OLMO = {
    "norms after": plain(norms="before"),
    "norms over projections": plain(qk_norm_over="head"),
    "norms of queries and keys": plain(qk_norm=False),
}

_DELTA_NET = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
}
_HYBRID = {
    "Gated DeltaNet": llamas("delta_net"),
    "gates after attention": llamas("gated"),
    "norms by 1 + scale": llamas("norm_plus_one"),
    "norms of heads": plain(qk_norm=False),
    "part of a head": rope(partial_rotary_factor=1.0),
}
_QWEN_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20} | {
    "shared_expert_intermediate_size": 12
}
_SHARED_EXPERT = {
    "shared expert": experts(shared_intermediate_size=0, shared_gate=False),
    "its gate": experts(shared_gate=False),
    "shares that add up to 1": experts(norm_topk_prob=False),
}

_LATENT = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
_OF_LATENTS = {
    "pairs of neighbours": rope(interleaved=False),
    "scale of whole heads": plain(attention_multiplier=None),
    "shared expert": experts(shared_intermediate_size=0),
}


_GEMMA4 = {
    "model_type": "gemma4_text",
    "tie_word_embeddings": True,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 5,
    "final_logit_softcapping": 3.0,
    "vocab_size_per_layer_input": VOCABULARY,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
        WINDOWED: {"rope_type": "default", "rope_theta": 10.0},
    },
}
_OF_GEMMA4 = {
    "norms of values": llamas("v_norm"),
    "norms of queries and keys": plain(qk_norm=False),
    "scores as they are": llamas("attention_multiplier"),
    "norms around": llamas("norms"),
    "tanh-GELU": llamas("activation"),
    "factor of embeddings": llamas("embedding_multiplier"),
    "cap of logits": llamas("final_logit_softcapping"),
    "scales of layers": by_layer(scaled=False),
    "size of heads in layers without a window": by_layer(head_dim=8),
    "part of a head": rope(partial_rotary_factor=1.0),
    "angles of whole heads": rope(kind="default"),
    "rotary embedding in windows": llamas("local_rope"),
}

# model_type, and more where it has two cases -> its entries beyond _BASE, and what is left out, fact by fact, to see
# that the comparison notices.
_ROWS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Change]]] = {
    "smollm3": (
        {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5}
        | {
            "layer_types": [FULL, WINDOWED, FULL],
            "tie_word_embeddings": True,
            "attention_bias": True,
            "pad_token_id": 0,
        },
        {
            "layers that rotate nothing": llamas("no_rope_layers"),
            "window": plain(sliding_window=None, full_attention_layers=()),
        },
    ),
    "phi3": (
        {"partial_rotary_factor": 0.75, "rope_scaling": _LONGROPE, "original_max_position_embeddings": 16}
        | {"pad_token_id": 0, "sliding_window": 9},
        {
            "part of a head": rope(partial_rotary_factor=1.0, kind="default"),
            "long factors": rope(long_factor=(1.0, 1.1, 1.3)),
            "short factors": rope(short_factor=(1.2, 2.0, 4.0)),
            "factor of cos and sin": rope(attention_factor=1.0),
            "window": plain(sliding_window=None),
        },
    ),
    "granite": (_MULTIPLIERS | {"mlp_bias": True}, _SCALES | {"biases": plain(mlp_bias=False)}),
    "olmo2": ({"attention_bias": True}, _OLMO),
    "olmo3": (
        {"num_hidden_layers": 4, "sliding_window": 5, "rope_theta": 500000.0, "rope_scaling": _YARN},
        _OLMO
        | {
            "window": plain(sliding_window=None, full_attention_layers=(), local_rope=None),
            "rotary embedding in windows": llamas("local_rope"),
        },
    ),
    "exaone4": (
        {
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": [WINDOWED, FULL, WINDOWED],
            "sliding_window_pattern": 2,
        },
        {
            "layers that rotate nothing": llamas("no_rope_layers"),
            "norms after": plain(norms="before"),
            "norms of heads": plain(qk_norm=False),
            "window": plain(sliding_window=None, full_attention_layers=()),
        },
    ),
    "ministral3": (
        {"head_dim": 8, "sliding_window": None}
        | {"rope_parameters": _YARN | {"rope_theta": 1e4, "llama_4_scaling_beta": 0.8}},
        {"factors of queries": rope(query_beta=0.0)},
    ),
    "seed_oss": (
        {"head_dim": 8, "attention_bias": True, "attention_out_bias": False, "mlp_bias": True},
        {"biases of attention": plain(qkv_bias=False), "biases of the MLP": plain(mlp_bias=False)},
    ),
    "hunyuan_v1_dense": (
        {"head_dim": 8, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
        {
            "norms after the rotation": plain(qk_norm_over="head"),
            "norms of heads": plain(qk_norm=False),
            "alpha": rope(kind="default"),
        },
    ),
    "ernie4_5": (
        {"head_dim": 8, "use_bias": True, "tie_word_embeddings": True},
        {"pairs of neighbours": rope(interleaved=False), "biases": plain(attention_bias=False, mlp_bias=False)},
    ),
    "granitemoe": (
        _MULTIPLIERS | _EXPERTS,
        _SCALES | {"shares that add up to 1": experts(norm_topk_prob=False)},
    ),
    "olmoe": (
        {"num_experts": 6, "num_experts_per_tok": 2},
        {
            "norms over projections": plain(qk_norm_over="head"),
            "shares as they are": experts(norm_topk_prob=True),
        },
    ),
    "glm4_moe": (
        {"num_hidden_layers": 3, "moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3}
        | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "first_k_dense_replace": 1, "head_dim": 8}
        | {"use_qk_norm": True, "attention_bias": True, "num_nextn_predict_layers": 0},
        {
            "sigmoids": experts(scores="softmax"),
            "correction": experts(correction_bias=False),
            "groups": experts(num_groups=1, topk_groups=1),
            "number of groups": experts(topk_groups=3),
            "factor of the shares": experts(routed_scaling_factor=1.0),
            "shares that add up to 1": experts(norm_topk_prob=False),
            "shared expert": experts(shared_intermediate_size=0),
            "part of a head": rope(partial_rotary_factor=1.0),
            "norms of heads": plain(qk_norm=False),
            "biases": plain(qkv_bias=False),
        },
    ),
    "minimax_m2": (
        _EXPERTS | {"head_dim": 8, "rotary_dim": 4},
        {
            "sigmoids": experts(scores="softmax"),
            "correction": experts(correction_bias=False),
            "norms over projections": plain(qk_norm_over="head"),
            "part of a head": rope(partial_rotary_factor=1.0),
        },
    ),
    "qwen3_next": (
        _DELTA_NET | _QWEN_EXPERTS | {"mlp_only_layers": [1], "layer_types": [LINEAR, LINEAR, FULL, LINEAR]},
        _HYBRID | _SHARED_EXPERT,
    ),
    "qwen3_5_text": (_DELTA_NET | {"linear_conv_kernel_dim": 3, "full_attention_interval": 2}, _HYBRID),
    "qwen3_5_moe_text": (_DELTA_NET | _QWEN_EXPERTS, _HYBRID | _SHARED_EXPERT),
    "llama4_text": (
        {"num_hidden_layers": 4, "head_dim": 8, "no_rope_layers": [1, 0, 1, 1], "attention_chunk_size": 5}
        | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 24, "floor_scale": 3, "attn_scale": 0.5}
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
        {
            "chunks": plain(sliding_window=None, full_attention_layers=()),
            "chunks that are no windows": plain(chunked=False),
            "a layer without chunks": plain(full_attention_layers=()),
            "layers that rotate nothing": plain(no_rope_layers=()),
            "factors of queries": plain(no_rope_query_beta=0.0),
            "norms of heads": plain(qk_norm=False),
            "norms after the rotation, not before": plain(qk_norm_over="head"),
            "pairs of neighbours": rope(interleaved=False),
            "shares of what goes in": experts(scales_input=False),
            "sigmoids": experts(scores="softmax"),
            "shared expert": experts(shared_intermediate_size=0),
        },
    ),
    "deepseek_v3": (
        _LATENT
        | {"q_lora_rank": 14, "rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, "attention_bias": True}
        | {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
        _OF_LATENTS
        | {
            "factor of the scores": plain(attention_multiplier=(6 + 4) ** -0.5),
            "biases": plain(attention_bias=False),
            "first layers dense": experts(mlp_only_layers=()),
        },
    ),
    "glm4_moe_lite": (
        _LATENT
        | {"q_lora_rank": None, "mlp_layer_types": ["sparse", "dense", "sparse"], "num_nextn_predict_layers": 0},
        _OF_LATENTS | {"layers one by one": experts(mlp_only_layers=(0,))},
    ),
    "gemma4_text": (
        _GEMMA4
        | {"num_hidden_layers": 5, "layer_types": [WINDOWED, FULL, WINDOWED, WINDOWED, FULL]}
        | {"num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 2}
        | {"use_double_wide_mlp": True, "hidden_size_per_layer_input": 6},
        _OF_GEMMA4
        | {
            "window": plain(sliding_window=None, full_attention_layers=()),
            "number of heads in layers without a window": by_layer(num_key_value_heads=2),
            "values that are keys": by_layer(keys_as_values=False),
            "keys and values of earlier layers": by_layer(num_kv_shared_layers=0),
            "keys and values of one kind": plain(full_attention_layers=(1, 3, 4)),
            "wide MLPs": by_layer(wide_mlp=False),
            "embeddings by layer": by_layer(input_size=0),
        },
    ),
    "gemma4_unified_text": (
        {key: value for key, value in _GEMMA4.items() if key != "vocab_size_per_layer_input"}
        | {"num_hidden_layers": 3, "layer_types": [WINDOWED, FULL, FULL]}
        | {"num_global_key_value_heads": 1, "attention_k_eq_v": True, "model_type": "gemma4_unified_text"},
        _OF_GEMMA4
        | {
            "number of heads in layers without a window": by_layer(num_key_value_heads=2),
            "values that are keys": by_layer(keys_as_values=False),
        },
    ),
    "gemma4_text with experts": (
        _GEMMA4
        | {"num_hidden_layers": 3, "layer_types": [WINDOWED, FULL, FULL], "hidden_size_per_layer_input": 0}
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 20},
        _OF_GEMMA4
        | {
            "experts in addition to the MLP": experts(parallel_mlp=False),
            "scale of what the router reads": experts(router_scale=False),
            "scales of experts": experts(expert_scale=False),
            "shares that add up to 1": experts(norm_topk_prob=False),
        },
    ),
    "gpt_oss": (
        _EXPERTS
        | {"head_dim": 8, "sliding_window": 5, "rope_theta": 100.0, "rope_scaling": _YARN_BANDS}
        | {"swiglu_limit": 0.7},
        {
            "sinks": llamas("sinks"),
            "window": plain(sliding_window=None, full_attention_layers=()),
            "window in every second layer": plain(full_attention_layers=()),
            "bands that are not rounded": rope(truncate=True),
            "shares that add up to 1": experts(norm_topk_prob=False),
            "biases of attention": plain(attention_bias=False),
            "bias of the router": experts(router_bias=False),
            "biases of experts": experts(bias=False),
            "limit": experts(swiglu_limit=70.0),
            "clamped SwiGLU": experts(swiglu_limit=None),
            "alpha": experts(swiglu_alpha=1.0),
        },
    ),
}

# Weights whose greedy text does not say one token again and again; a case's name is the seed of its weights.
_DRAWS = {"smollm3": "m", "olmo2": "m", "seed_oss": "d", "hunyuan_v1_dense": "c"}
_DRAWS |= {"ernie4_5": "m", "olmoe": "f", "glm4_moe": "e", "gpt_oss": "e", "gemma4_unified_text": "a"}

FAMILIES = {
    name: Case(f"family_{name.replace(' ', '_')}{_DRAWS.get(name, '')}", _BASE | {"model_type": name} | entries)
    for name, (entries, _) in _ROWS.items()
}
LEFT_OUT = [(name, fact) for name, (_, facts) in _ROWS.items() for fact in facts]


def without(name: str, fact: str, config: LlamaConfig) -> LlamaConfig:
    """The config with one fact left out."""
    return _ROWS[name][1][fact](config)
