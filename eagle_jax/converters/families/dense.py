"""The families of dense targets: a row each. Whoever adds one that is only data adds a row, and one to the tests."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families import facts
from eagle_jax.converters.families.family import Family

_QWEN = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
_QWEN_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}

GRANITE = frozenset({"attention_bias", "attention_multiplier", "embedding_multiplier"}) | {
    "residual_multiplier",
    "logits_scaling",
}
GRANITE_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 2048,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-6,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_OLMO_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 2048,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
}
_OLMO_IMPLIED: Mapping[str, Any] = {"norms": "after", "qk_norm": True, "qk_norm_over": "projection"}
MISTRAL3 = ("mistral3", "Mistral3ForConditionalGeneration")
_YARN_MINISTRAL: Mapping[str, Any] = {
    "type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}

DENSE: Mapping[str, Family] = {
    "llama": Family(
        title="Llama 2, 3, 3.1, 3.2, 3.3, Vicuna, R1-Distill-Llama",
        differs="rotary scaling linear, dynamic, llama3, yarn; biases on attention and MLP; tied output",
        architecture="LlamaForCausalLM",
        keys=frozenset({"attention_bias", "mlp_bias"}),
        defaults={"max_position_embeddings": 2048, "num_key_value_heads": None, "rms_norm_eps": 1e-6},
    ),
    "mistral": Family(
        title="Mistral",
        differs="sliding window",
        architecture="MistralForCausalLM",
        composite=MISTRAL3,
        keys=frozenset({"sliding_window"}),
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family(
        title="Qwen2, Qwen2.5, R1-Distill-Qwen",
        differs="biases on q, k, v; windows by layer (`use_sliding_window`, `max_window_layers`, `layer_types`)",
        architecture="Qwen2ForCausalLM",
        keys=_QWEN,
        defaults=_QWEN_DEFAULTS,
        implied_fields={"qkv_bias": True},
    ),
    "qwen3": Family(
        title="Qwen3",
        differs="each query and key head is normed; `head_dim` of its own; windows by layer",
        architecture="Qwen3ForCausalLM",
        keys=_QWEN | {"attention_bias"},
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        implied_fields={"qk_norm": True},
    ),
    "smollm3": Family(
        title="SmolLM3",
        differs="some layers rotate nothing (`no_rope_layers`); windows by layer; biases on attention and MLP",
        architecture="SmolLM3ForCausalLM",
        keys=frozenset({"attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "layer_types"})
        | {"no_rope_layers", "no_rope_layer_interval"},
        defaults={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "sliding_window": None,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
        },
        read=facts.smollm3,
    ),
    "phi3": Family(
        title="Phi-3, Phi-3.5, Phi-4 (text)",
        differs="q, k, v in one tensor of its files, gate and up in another; a part of each head is rotated; LongRoPE",
        architecture="Phi3ForCausalLM",
        keys=frozenset({"sliding_window"}),
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "num_key_value_heads": None,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
        },
        implied_fields={"layout": "phi3"},
        neutral=frozenset({"embd_pdrop"}),
        rope=frozenset({"partial", "longrope"}),
    ),
    "granite": Family(
        title="Granite 3",
        differs="factors on embeddings, scores, what layers add, and logits",
        architecture="GraniteForCausalLM",
        keys=GRANITE | {"mlp_bias"},
        defaults=GRANITE_DEFAULTS,
    ),
    "olmo2": Family(
        title="OLMo 2",
        differs="norms after attention and MLP, none before; norms over all queries and all keys of a token",
        architecture="Olmo2ForCausalLM",
        keys=frozenset({"attention_bias"}),
        defaults=_OLMO_DEFAULTS,
        implied_fields=_OLMO_IMPLIED,
    ),
    "olmo3": Family(
        title="OLMo 3",
        differs="as OLMo 2; three of four layers with a window, in which rotary scaling does not apply",
        architecture="Olmo3ForCausalLM",
        keys=frozenset({"attention_bias", "sliding_window", "layer_types"}),
        defaults={
            **_OLMO_DEFAULTS,
            "rope_theta": 500000.0,
            "rope_local_base_freq": 500000.0,  # transformers 5 takes the usual base at any `rope_theta`
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        implied_fields=_OLMO_IMPLIED,
        read=facts.olmo3,
    ),
    "exaone4": Family(
        title="EXAONE 4",
        differs="norms after attention and MLP, none before; normed heads; windows by layer, and layers without "
        "one rotate nothing",
        architecture="Exaone4ForCausalLM",
        keys=frozenset({"sliding_window", "sliding_window_pattern", "layer_types"}),
        defaults={
            "max_position_embeddings": 2048,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        implied_fields={"norms": "after", "qk_norm": True},
        read=facts.exaone4,
    ),
    "ministral3": Family(
        title="Ministral 3 (text)",
        differs="queries grow with the position (`llama_4_scaling_beta`); yarn; sliding window",
        architecture="Ministral3ForCausalLM",
        composite=MISTRAL3,
        keys=frozenset({"sliding_window"}),
        defaults={
            "max_position_embeddings": 262144,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_parameters": _YARN_MINISTRAL,
        },
        rope=frozenset({"query_beta"}),
    ),
    "seed_oss": Family(
        title="Seed-OSS",
        differs="biases on q, k, v by one key and on o by another; biases on the MLP",
        architecture="SeedOssForCausalLM",
        keys=frozenset({"attention_bias", "attention_out_bias", "mlp_bias"}),
        defaults={
            "max_position_embeddings": 524288,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "attention_bias": True,
        },
        neutral=frozenset({"residual_dropout"}),
        read=facts.seed_oss,
        write=facts.seed_oss_keys,
    ),
    "hunyuan_v1_dense": Family(
        title="Hunyuan 0.5B to 7B",
        differs="heads are normed after they are rotated; rotary scaling by a constant (`alpha`)",
        architecture="HunYuanDenseV1ForCausalLM",
        keys=frozenset({"attention_bias"}),
        defaults={"max_position_embeddings": 2048, "num_key_value_heads": None, "rms_norm_eps": 1e-5},
        implied_fields={"qk_norm": True, "qk_norm_over": "rotated_head", "layout": "hunyuan_v1_dense"},
        neutral=frozenset({"eod_token_id"}),
        rope=frozenset({"alpha"}),
    ),
    "ernie4_5": Family(
        title="Ernie 4.5 (dense)",
        differs="neighbouring dimensions are rotated with each other; biases on all projections by one key",
        architecture="Ernie4_5ForCausalLM",
        keys=frozenset({"use_bias"}),
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
        rope=frozenset({"interleaved"}),
        read=facts.ernie,
        write=lambda config: {"use_bias": config.attention_bias},
    ),
}
