"""The families of targets with sparse experts: a row each."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families import experts, facts, llama4
from eagle_jax.converters.families.dense import GRANITE, GRANITE_DEFAULTS
from eagle_jax.converters.families.family import SILU, Family

_YARN_OSS: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
MOE: Mapping[str, Family] = {
    "mixtral": Family(
        title="Mixtral",
        differs="sparse experts",
        architecture="MixtralForCausalLM",
        keys=experts.ROUTED | {"sliding_window"},
        experts=experts.mixtral,
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_theta": 1e6,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_moe": Family(
        title="Qwen3-MoE",
        differs="sparse experts, some layers dense (`mlp_only_layers`, `decoder_sparse_step`), and what Qwen3 has",
        architecture="Qwen3MoeForCausalLM",
        # `max_window_layers` is published with the others and has no effect: a window is every layer's.
        keys=frozenset({"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers"})
        | experts.ROUTED
        | {"moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"},
        experts=experts.qwen3_moe,
        defaults={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        implied_fields={"qk_norm": True},
    ),
    "granitemoe": Family(
        title="Granite 3 MoE",
        differs="sparse experts, gate and up in one tensor of its files, and what Granite has",
        architecture="GraniteMoeForCausalLM",
        keys=GRANITE | experts.ROUTED,
        defaults={**GRANITE_DEFAULTS, "num_experts_per_tok": 2},
        implied_fields={"layout": "granitemoe"},
        experts=experts.mixtral,
    ),
    "olmoe": Family(
        title="OLMoE",
        differs="sparse experts; norms over all queries and all keys of a token",
        architecture="OlmoeForCausalLM",
        keys=experts.ROUTED | {"attention_bias", "norm_topk_prob"},
        defaults={
            "max_position_embeddings": 4096,
            "num_key_value_heads": None,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        implied_fields={"qk_norm": True, "qk_norm_over": "projection", "layout": "olmoe"},
        fixed={**SILU, "clip_qkv": (None,)},
        experts=experts.olmoe,
    ),
    "glm4_moe": Family(
        title="GLM-4.5, 4.6, 4.7",
        differs="sparse experts by sigmoids, a correction and groups, a shared one, the first layers dense; half "
        "of each head is rotated; biases on q, k, v",
        architecture="Glm4MoeForCausalLM",
        keys=experts.BY_GROUPS | {"attention_bias", "use_qk_norm", "first_k_dense_replace"},
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "n_routed_experts": 128,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        implied_fields={"layout": "glm4_moe"},
        neutral=frozenset({"num_nextn_predict_layers", "num_mtp_layers"}),
        rope=frozenset({"partial"}),
        experts=experts.glm4_moe,
        read=facts.glm4_moe,
        write=lambda config: {"attention_bias": config.qkv_bias, "use_qk_norm": config.qk_norm},
    ),
    "minimax_m2": Family(
        title="MiniMax M2, M2.5",
        differs="sparse experts by sigmoids and a correction; norms over all queries and all keys of a token; a "
        "part of each head is rotated",
        architecture="MiniMaxM2ForCausalLM",
        keys=experts.ROUTED | {"rotary_dim"},
        defaults={
            "max_position_embeddings": 196608,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e6,
            "num_experts_per_tok": 8,
        },
        implied_fields={"qk_norm": True, "qk_norm_over": "projection", "layout": "minimax_m2"},
        rope=frozenset({"partial"}),
        experts=experts.minimax_m2,
    ),
    "llama4_text": Family(
        title="Llama 4 (text)",
        differs="attention in chunks, but for every fourth layer, which rotates nothing and scales queries; "
        "norms of rotated queries and keys without a scale; neighbours are rotated; experts by sigmoids that scale "
        "what goes in, and a shared one",
        architecture="Llama4ForCausalLM",
        composite=("llama4", "Llama4ForConditionalGeneration"),
        keys=llama4.KEYS | experts.ROUTED,
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 16384,
            "use_qk_norm": True,
            "no_rope_layer_interval": 4,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        implied_fields={"qk_norm_over": "rotated_head_unscaled", "layout": "llama4"},
        rope=frozenset({"interleaved"}),
        experts=experts.llama4,
        read=llama4.read,
        write=llama4.write,
    ),
    "gpt_oss": Family(
        title="gpt-oss 20B, 120B",
        differs="a sink in each head's softmax; every second layer with a window; sparse experts with biases and "
        "a clamped SwiGLU, gate and up interleaved in one tensor of its files, mostly of MXFP4; yarn "
        "without rounding of its bands",
        architecture="GptOssForCausalLM",
        keys=experts.ROUTED | {"attention_bias", "sliding_window", "layer_types", "swiglu_limit", "swiglu_alpha"},
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": _YARN_OSS,
            "attention_bias": True,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "num_experts_per_tok": 4,
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
        },
        implied_fields={"sinks": True, "layout": "gpt_oss"},
        experts=experts.gpt_oss,
    ),
}
