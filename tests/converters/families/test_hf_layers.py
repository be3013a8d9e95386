"""Layers that `config.json` tells apart: windows, experts, latents, recurrent ones."""

import dataclasses
import math
from typing import Any

import pytest
from test_hf_config import FULL, MIXTRAL, QWEN2, QWEN3_MOE, WINDOW, WINDOWED

from eagle_jax.configs.target import Latent
from eagle_jax.converters import config_from_hf, config_to_hf
from tests.converters.folders import ENTRIES, config, refused


@pytest.mark.parametrize(
    ("changes", "window", "full"),
    [
        ({"sliding_window": 7}, None, ()),
        (WINDOW, None, ()),  # of two layers both are below 28
        (WINDOW | {"max_window_layers": 1}, 7, (0,)),
        (WINDOW | {"max_window_layers": 0}, 7, ()),
        (WINDOW | {"layer_types": [WINDOWED, FULL]}, 7, (1,)),
        (WINDOW | {"layer_types": [FULL, FULL], "max_window_layers": 0}, None, ()),
    ],
)
def test_layers_without_a_window(changes: dict[str, Any], window: int | None, full: tuple[int, ...]):
    read = config(**QWEN2, **changes)
    assert (read.sliding_window, read.full_attention_layers) == (window, full)


def test_layers_that_are_not_there():
    for layers in ((2,), (-1,), (1, 0), (0, 0)):
        with refused(ValueError, "full_attention_layers", "0 to 1"):
            dataclasses.replace(config(), full_attention_layers=layers)


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": [0]}, (0,)),
        ({"decoder_sparse_step": 2}, (0,)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (0, 1)),
    ],
)
def test_layers_without_experts(changes: dict[str, Any], dense: tuple[int, ...]):
    read = config(**QWEN3_MOE, **changes)
    assert read.experts is not None and read.experts.mlp_only_layers == dense


def test_experts_that_cannot_be_said():
    experts = config(**MIXTRAL).experts
    assert experts is not None
    with refused(ValueError, "experts.norm_topk_prob=False", "mixtral", "cannot say so"):
        config_to_hf(dataclasses.replace(config(), experts=dataclasses.replace(experts, norm_topk_prob=False)))
    with refused(ValueError, "mlp_bias=True", "experts"):
        dataclasses.replace(config(), experts=experts, mlp_bias=True)


KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "seq_aux": True,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0}
    | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}


def test_kimi_k2():
    """Latent attention, whose scores YaRN scales; cos and sin are as they are, since both its factors are one."""
    config = config_from_hf(KIMI_K2)
    assert config.latent == Latent(rank=512, query_rank=1536, plain_dim=128, value_dim=128)
    assert (config.head_dim, config.rope.interleaved, config.rope.attention_factor) == (64, True, 1.0)
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(32) + 1) ** 2)
    assert config.experts is not None and config.experts.mlp_only_layers == (0,)
    assert config_from_hf(config_to_hf(config)) == config
    with refused(ValueError, "scoring_func='softmax'"):
        config_from_hf(KIMI_K2 | {"scoring_func": "softmax"})
    with refused(ValueError, "kv_lora_rank", "expected"):
        config_from_hf(KIMI_K2 | {"kv_lora_rank": "many"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention"]}, ["layer_types", "for each of 4 layers"]),
        ({"layer_types": [WINDOWED] * 4}, ["layer_types", "'linear_attention'"]),
        ({"full_attention_interval": 0}, ["full_attention_interval=0"]),
        ({"full_attention_interval": 5}, ["linear attention in all layers"]),
        ({"linear_num_value_heads": 5}, ["num_value_heads=5", "num_key_heads=16"]),
        ({"linear_conv_kernel_dim": None, "linear_key_head_dim": "wide"}, ["linear_key_head_dim"]),
    ],
)
def test_recurrent_layers_that_are_refused(changes: dict[str, Any], words: list[str]):
    entries = {key: ENTRIES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
    with refused(ValueError, *words):
        config_from_hf(entries | {"model_type": "qwen3_5_text", "num_hidden_layers": 4} | changes)
