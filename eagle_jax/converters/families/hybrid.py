"""The families of targets in which some layers have a recurrent state in place of attention: a row each."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families import delta_net, experts
from eagle_jax.converters.families.family import Family

_DEFAULTS: Mapping[str, Any] = {
    **delta_net.ABSENT,
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
}
_IMPLIED: Mapping[str, Any] = {"qk_norm": True, "norm_plus_one": True, "gated": True}
_EXPERTS = frozenset({"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"})
_DIFFERS = "Gated DeltaNet in three of four layers; gates after attention; a quarter of each head is rotated"

HYBRID: Mapping[str, Family] = {
    "qwen3_next": Family(
        title="Qwen3-Next",
        differs=f"{_DIFFERS}; sparse experts and a shared one with a gate",
        architecture="Qwen3NextForCausalLM",
        keys=delta_net.KEYS | _EXPERTS | {"attention_bias", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"},
        defaults={
            **_DEFAULTS,
            "intermediate_size": 5632,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        implied_fields={**_IMPLIED, "layout": "qwen3_next"},
        rope=frozenset({"partial"}),
        experts=experts.qwen3_next,
        read=delta_net.read_fused,
        write=delta_net.write,
    ),
    "qwen3_5_text": Family(
        title="Qwen3.5 and 3.6 (text)",
        differs=_DIFFERS,
        architecture="Qwen3_5ForCausalLM",
        composite=("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        keys=delta_net.KEYS | {"attention_bias"},
        defaults={**_DEFAULTS, "intermediate_size": 12288, "num_key_value_heads": 4},
        implied_fields={**_IMPLIED, "layout": "qwen3_5"},
        rope=frozenset({"partial", "sections"}),
        read=delta_net.read,
        write=delta_net.write,
    ),
    "qwen3_5_moe_text": Family(
        title="Qwen3.5 and 3.6 MoE (text)",
        differs=f"{_DIFFERS}; sparse experts and a shared one with a gate",
        architecture="Qwen3_5MoeForCausalLM",
        composite=("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        keys=delta_net.KEYS | _EXPERTS | {"attention_bias"},
        defaults={
            **_DEFAULTS,
            "intermediate_size": 512,  # no layer is dense
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        implied_fields={**_IMPLIED, "layout": "qwen3_5_moe"},
        rope=frozenset({"partial", "sections"}),
        experts=experts.qwen3_5_moe,
        read=delta_net.read,
        write=delta_net.write,
    ),
}
