"""Published targets: the facts of their `config.json` are accepted, and give the published number of parameters."""

import dataclasses
import math
from typing import Any

import jax
import pytest

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import config_from_hf, config_to_hf, llama

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
_LLAMA31 = _LLAMA | {
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
}
_SEVENTY = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
_LLAMA32 = _LLAMA31 | {
    "rope_scaling": _LLAMA31["rope_scaling"] | {"factor": 32.0},
    "intermediate_size": 8192,
    "tie_word_embeddings": True,
}
_LLAMA2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-chat-hf",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.32.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
_VICUNA = {name: value for name, value in _LLAMA2.items() if name not in ("num_key_value_heads", "rope_scaling")}
_THIRTEEN = {"hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40, "num_hidden_layers": 40}
_THIRTY_THREE = {"hidden_size": 6656, "intermediate_size": 17920, "num_attention_heads": 52, "num_hidden_layers": 60}
_MISTRAL = _LLAMA2 | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "sliding_window": None,
}
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
_QWEN3 = _QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
    "vocab_size": 151936,
}
_MIXTRAL = _MISTRAL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.02,
}
_QWEN3_MOE = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
_GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 107],
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.4",
    "use_cache": True,
    "vocab_size": 256000,
}
_GEMMA3 = {name: value for name, value in _GEMMA2.items() if name != "hidden_act"} | {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}

# name -> config.json, parameters (a tied output matrix counted once)
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b-chat": (_LLAMA2, 6_738_415_616),
    "Llama-2-13b-chat": (_LLAMA2 | _THIRTEEN | {"num_key_value_heads": 40}, 13_015_864_320),
    "Llama-2-70b-chat": (_LLAMA2 | _SEVENTY | {"num_key_value_heads": 8}, 68_976_648_192),
    "Llama-3-8B-Instruct": (_LLAMA | {"max_position_embeddings": 8192, "eos_token_id": 128009}, 8_030_261_248),
    "Llama-3.1-8B-Instruct": (_LLAMA31, 8_030_261_248),
    "Llama-3.2-1B-Instruct": (
        _LLAMA32 | {"hidden_size": 2048, "num_hidden_layers": 16, "head_dim": 64},
        1_235_814_400,
    ),
    "Llama-3.2-3B-Instruct": (
        _LLAMA32 | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128},
        3_212_749_824,
    ),
    "Llama-3.3-70B-Instruct": (_LLAMA31 | _SEVENTY, 70_553_706_496),
    "DeepSeek-R1-Distill-Llama-8B": (_LLAMA31 | {"eos_token_id": 128001}, 8_030_261_248),
    "vicuna-7b-v1.3": (_VICUNA | {"max_position_embeddings": 2048, "rms_norm_eps": 1e-06}, 6_738_415_616),
    "vicuna-13b-v1.3": (_VICUNA | _THIRTEEN | {"rms_norm_eps": 1e-06}, 13_015_864_320),
    "vicuna-33b-v1.3": (_VICUNA | _THIRTY_THREE | {"rms_norm_eps": 1e-06}, 32_528_943_616),
    "Mistral-7B-Instruct-v0.2": (_MISTRAL, 7_241_732_096),
    "Qwen2-7B-Instruct": (_QWEN2, 7_615_616_512),
    "Qwen2.5-0.5B-Instruct": (
        _QWEN2
        | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151936, "max_window_layers": 21},
        494_032_768,
    ),
    "Qwen3-0.6B": (
        _QWEN3
        | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"tie_word_embeddings": True, "max_window_layers": 28},
        596_049_920,
    ),
    "Qwen3-8B": (_QWEN3, 8_190_735_360),
    "Mixtral-8x7B-Instruct-v0.1": (_MIXTRAL, 46_702_792_704),
    "Mixtral-8x22B-Instruct-v0.1": (
        _MIXTRAL
        | {"hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48, "num_hidden_layers": 56}
        | {"max_position_embeddings": 65536, "vocab_size": 32768},
        140_630_071_296,
    ),
    "Qwen3-30B-A3B": (_QWEN3_MOE, 30_532_122_624),
    "Qwen3-235B-A22B": (
        _QWEN3_MOE
        | {"hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536}
        | {"num_attention_heads": 64, "num_hidden_layers": 94, "max_window_layers": 94},
        235_093_634_560,
    ),
    "gemma-2-2b-it": (_GEMMA2, 2_614_341_888),
    "gemma-2-27b-it": (
        _GEMMA2
        | {"hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32, "num_key_value_heads": 16}
        | {"head_dim": 128, "num_hidden_layers": 46, "query_pre_attn_scalar": 144},
        27_227_128_320,
    ),
    "gemma-3-1b-it": (_GEMMA3, 999_885_952),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_target(name: str):
    entries, parameters = PUBLISHED[name]
    config = config_from_hf(entries)
    if config.norms != "around":
        assert config.sliding_window is None
    else:  # every second or sixth layer sees everything
        assert config.sliding_window == entries["sliding_window"]
        assert config.full_attention_layers[0] == entries.get("sliding_window_pattern", 2) - 1
    assert _parameters(config) == parameters
    assert config_from_hf(config_to_hf(config)) == config


def _parameters(config: LlamaConfig) -> int:
    """Counted in models of one and two layers: the layers of each published model are all alike."""
    one, two = (
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(llama.shapes(_with_layers(config, count))))
        for count in (1, 2)
    )
    return one + (config.num_hidden_layers - 1) * (two - one)


def _with_layers(config: LlamaConfig, count: int) -> LlamaConfig:
    return dataclasses.replace(config, num_hidden_layers=count, full_attention_layers=())
