"""Published targets: the facts of their `config.json` are accepted, and give the published number of parameters."""

import dataclasses
import math
from typing import Any

import jax
import pytest

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import config_from_hf, config_to_hf, llama
from tests.converters.public_configs import LLAMA31, VICUNA, entries_of

OME = "sgl-project/ome: pkg/hfutil/modelconfig/testdata/"
_LLAMA = LLAMA31 | {"rope_scaling": None}
_SEVENTY = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
_LLAMA2 = VICUNA | {
    "max_position_embeddings": 4096,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
}
_VICUNA_LONG = VICUNA | {"max_position_embeddings": 4096}
_THIRTEEN = {"hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40, "num_hidden_layers": 40}
_THIRTY_THREE = {"hidden_size": 6656, "intermediate_size": 17920, "num_attention_heads": 52, "num_hidden_layers": 60}
_ROUTING = {"output_router_logits": False, "router_aux_loss_coef": 0.02}
_QWEN3 = entries_of(f"{OME}qwen3_8b_fp8")
_MIXTRAL = entries_of(f"{OME}mixtral") | _ROUTING
_QWEN3_MOE = entries_of(f"{OME}qwen3_30b") | _ROUTING
_GEMMA2 = entries_of(f"{OME}gemma_2_2b_it") | {"cache_implementation": "hybrid", "pad_token_id": 0}

# name -> config.json, parameters (a tied output matrix counted once)
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b-chat": (_LLAMA2, 6_738_415_616),
    "Llama-2-13b-chat": (_LLAMA2 | _THIRTEEN | {"num_key_value_heads": 40}, 13_015_864_320),
    "Llama-2-70b-chat": (_LLAMA2 | _SEVENTY | {"num_key_value_heads": 8}, 68_976_648_192),
    "Llama-3-8B-Instruct": (_LLAMA | {"max_position_embeddings": 8192, "eos_token_id": 128009}, 8_030_261_248),
    "Llama-3.1-8B-Instruct": (LLAMA31, 8_030_261_248),
    "Llama-3.2-1B-Instruct": (entries_of(f"{OME}llama3_2_1b"), 1_235_814_400),
    "Llama-3.2-3B-Instruct": (entries_of(f"{OME}llama3_2_3b"), 3_212_749_824),
    "Llama-3.3-70B-Instruct": (LLAMA31 | _SEVENTY, 70_553_706_496),
    "DeepSeek-R1-Distill-Llama-8B": (LLAMA31 | {"eos_token_id": 128001}, 8_030_261_248),
    "vicuna-7b-v1.3": (VICUNA, 6_738_415_616),
    "vicuna-13b-v1.3": (_VICUNA_LONG | _THIRTEEN, 13_015_864_320),
    "vicuna-33b-v1.3": (_VICUNA_LONG | _THIRTY_THREE, 32_528_943_616),
    "Mistral-7B-Instruct-v0.2": (entries_of(f"{OME}mistral_7b_instruct"), 7_241_732_096),
    "Qwen2-7B-Instruct": (entries_of(f"{OME}qwen2_7b") | {"max_position_embeddings": 32768}, 7_615_616_512),
    "Qwen2.5-0.5B-Instruct": (entries_of(f"{OME}qwen2.5_0.5b"), 494_032_768),
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
    "gemma-3-1b-it": (entries_of(f"{OME}gemma3_text"), 999_885_952),
}


@pytest.mark.matrix
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
