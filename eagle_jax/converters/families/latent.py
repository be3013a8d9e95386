"""The families of targets with multi-head latent attention: a row each."""

from collections.abc import Mapping

from eagle_jax.converters.families import experts, latent_attention
from eagle_jax.converters.families.family import SILU, Family

LATENT: Mapping[str, Family] = {
    "deepseek_v3": Family(
        title="DeepSeek-V3, R1, Kimi K2",
        differs="latent attention; sparse experts by sigmoids, a correction and groups, a shared one, the first layers "
        "dense",
        architecture="DeepseekV3ForCausalLM",
        composite=("kimi_k25", "KimiK25ForConditionalGeneration"),
        aliases=("kimi_k2",),
        keys=latent_attention.KEYS | experts.BY_GROUPS | {"attention_bias", "first_k_dense_replace"},
        defaults={
            "max_position_embeddings": 4096,
            "num_key_value_heads": 128,
            "head_dim": 64,
            "rms_norm_eps": 1e-6,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "rope_interleave": True,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "n_routed_experts": 256,
            "routed_scaling_factor": 2.5,
            "n_group": 8,
            "topk_group": 4,
            "first_k_dense_replace": 3,
            "norm_topk_prob": True,
        },
        implied_fields={"layout": "deepseek_v3"},
        fixed={**SILU, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
        neutral=frozenset({"num_nextn_predict_layers", "num_mtp_layers", "seq_aux", "aux_loss_alpha", "ep_size"})
        | {"qk_head_dim"},
        rope=frozenset({"rope_interleave"}),
        experts=experts.glm4_moe,
        read=latent_attention.read,
        write=latent_attention.write,
    ),
    "glm4_moe_lite": Family(
        title="GLM-4.7-Flash",
        differs="as DeepSeek-V3; dense layers one by one",
        architecture="Glm4MoeLiteForCausalLM",
        keys=latent_attention.KEYS | experts.BY_GROUPS | {"attention_bias", "mlp_layer_types"},
        defaults={
            "max_position_embeddings": 202752,
            "num_key_value_heads": 20,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "kv_lora_rank": 512,
            "q_lora_rank": 768,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "rope_interleave": True,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 1,
            "n_routed_experts": 64,
            "routed_scaling_factor": 1.8,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
        implied_fields={"layout": "glm4_moe_lite"},
        neutral=frozenset({"num_nextn_predict_layers", "num_mtp_layers", "qk_head_dim"}),
        rope=frozenset({"rope_interleave"}),
        experts=experts.glm4_moe_lite,
        read=latent_attention.read,
        write=lambda config: {**latent_attention.write(config), "mlp_layer_types": experts.kinds_of(config)},
    ),
}
