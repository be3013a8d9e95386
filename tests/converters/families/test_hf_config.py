"""`config.json` of targets."""

import dataclasses
from typing import Any

import pytest

from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import config_from_hf, config_to_hf
from tests.converters.folders import ENTRIES, config, refused
from tests.converters.public_configs import LLAMA31, VICUNA, entries_of

QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
GLM4_MOE = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "moe_intermediate_size": 8}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 6,
}
GEMMA2 = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
GEMMA3 = GEMMA2 | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
MISTRAL_TINY = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
WINDOW = {"sliding_window": 7, "use_sliding_window": True}
FULL, WINDOWED, LINEAR, CHUNKED = "full_attention", "sliding_attention", "linear_attention", "chunked_attention"
MISTRAL = entries_of("sgl-project/ome: pkg/hfutil/modelconfig/testdata/mistral")


def _seven_billion(**changes: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope": Rope(theta=10000.0),
    }
    return LlamaConfig(**sizes | changes)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (
            VICUNA,
            _seven_billion(
                intermediate_size=11008, num_key_value_heads=32, max_position_embeddings=2048, rms_norm_eps=1e-6
            ),
        ),
        (
            LLAMA31,
            _seven_billion(
                vocab_size=128256,
                max_position_embeddings=131072,
                rope=Rope(
                    theta=500000.0,
                    kind="llama3",
                    factor=8.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=8192,
                ),
            ),
        ),
        (MISTRAL, _seven_billion(sliding_window=4096)),
        (MISTRAL | {"sliding_window": None}, _seven_billion()),
        (MISTRAL | {"num_key_value_heads": None}, _seven_billion(num_key_value_heads=32, sliding_window=4096)),
    ],
    ids=["vicuna 1.3", "llama 3.1", "mistral 0.1", "mistral 0.2", "null heads"],
)
def test_published_configs(entries: dict[str, Any], expected: LlamaConfig):
    assert config_from_hf(entries) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_theta": 3.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7},
        QWEN2,
        QWEN2 | WINDOW | {"max_window_layers": 1, "tie_word_embeddings": True},
        QWEN3 | WINDOW | {"layer_types": [WINDOWED, FULL], "attention_bias": True},
        MIXTRAL,
        MIXTRAL | {"sliding_window": 7, "num_experts_per_tok": 1},
        QWEN3_MOE | {"norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True},
        QWEN3_MOE | WINDOW | {"mlp_only_layers": [0]},
        GEMMA2,
        GEMMA2 | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 5, "tie_word_embeddings": False},
        GEMMA3 | {"layer_types": [FULL, WINDOWED], "rope_local_base_freq": 3.0},
    ],
)
def test_round_trip(changes: dict[str, Any]):
    read = config(**changes)
    assert config_from_hf(config_to_hf(read)) == read


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "phi"}, ["'phi'", "llama, mistral, qwen2"]),
        ({"model_type": None}, ["model_type None"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification", "LlamaForCausalLM"]),
        ({"hidden_act": "gelu"}, ["hidden_act='gelu'", "'silu'"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"sliding_window": 5}, ["sliding_window=5", "expected None"]),
        ({"is_causal": False}, ["is_causal=False", "expected True"]),
        ({"attention_chunk_size": 8192}, ["attention_chunk_size=8192"]),
        ({"text_config": {}}, ["text_config={}"]),
        (QWEN2 | {"layer_types": [WINDOWED, FULL]}, ["layer_types", "no sliding_window"]),
        (QWEN2 | WINDOW | {"layer_types": [WINDOWED]}, ["layer_types=['sliding_attention']", "2 layers"]),
        (QWEN2 | WINDOW | {"layer_types": ["chunked_attention", FULL]}, ["chunked_attention", "'full_attention'"]),
        (QWEN2 | {"layer_types": 2}, ["layer_types=2"]),
        (QWEN2 | WINDOW | {"layer_types": [[WINDOWED], FULL]}, ["layer_types=[['sliding_attention']"]),
        (MIXTRAL | {"num_experts_per_tok": 5}, ["num_experts_per_tok=5", "num_experts=4"]),
        (MIXTRAL | {"num_local_experts": 0}, ["num_experts=0"]),
        (QWEN3_MOE | {"num_local_experts": 8}, ["num_experts=4", "num_local_experts=8"]),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, ["moe_intermediate_size=0"]),
        (QWEN3_MOE | {"mlp_only_layers": [2]}, ["mlp_only_layers", "decoder_sparse_step"]),
        (QWEN3_MOE | {"mlp_only_layers": 1}, ["mlp_only_layers=1"]),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, ["decoder_sparse_step=0"]),
        (MIXTRAL | {"num_experts": 8}, ["num_experts=8", "num_local_experts=4"]),
        (GLM4_MOE | {"num_local_experts": 64}, ["n_routed_experts=128", "num_local_experts=64"]),
        (GEMMA2 | {"hidden_activation": "silu"}, ["hidden_activation='silu'"]),
        (GEMMA2 | {"use_bidirectional_attention": True}, ["use_bidirectional_attention=True"]),
        (GEMMA2 | {"final_logit_softcapping": 0.0}, ["final_logit_softcapping=0.0"]),
        ({"hidden_size": None}, ["no hidden_size"]),
        ({"hidden_size": "8"}, ["hidden_size='8'", "whole number"]),
        ({"hidden_size": 2**31}, ["hidden_size=2147483648", "below 2**31"]),
        ({"hidden_size": 9}, ["num_attention_heads=4", "hidden_size=9"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads=4", "num_key_value_heads=3"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps='1e-5'"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps=nan"]),
        ({"rms_norm_eps": 0.0}, ["rms_norm_eps=0.0"]),
        ({"head_dim": 3}, ["head_dim=3"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings='yes'"]),
        ({"rope_scaling": {"type": "su"}}, ["'su'"]),
        (
            {"hidden_act": "gelu", "is_causal": False, "hidden_size": "8", "rope_scaling": {"type": "su"}},
            ["hidden_act='gelu'", "is_causal=False", "hidden_size='8'", "'su'"],
        ),
    ],
)
def test_refused(changes: dict[str, Any], words: list[str]):
    with refused(ValueError, *words):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({}, {"attention_multiplier": 0.5, "transformers.js_config": {"dtype": "q4"}, "is_llama_config": True}),
        ({}, {"query_pre_attn_scalar": 8, "use_sliding_window": True, "rope_interleaved": False}),
        (MISTRAL_TINY, {"attention_bias": True, "use_sliding_window": False}),
        (QWEN2, {"attention_bias": True, "mlp_bias": True}),
        (QWEN3, {"num_experts": 4, "use_qk_norm": True}),
        (QWEN3_MOE, {"shared_expert_intermediate_size": 0, "qkv_bias": False}),
        (GEMMA2, {"hidden_act": "gelu", "rope_local_base_freq": 1.0, "sliding_window_size": 4096}),
    ],
)
def test_keys_that_transformers_does_not_know_are_passed_over(changes, unknown, caplog):
    plain = {name: value for name, value in (ENTRIES | changes).items() if name not in unknown}
    assert config_from_hf(plain | unknown) == config_from_hf(plain)
    (line,) = caplog.messages
    assert line.endswith(": " + ", ".join(unknown)) and f" {changes.get('model_type', 'llama')} " in line


def test_rotary_settings_that_transformers_does_not_read_are_passed_over(caplog):
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
    assert config(rope_scaling=yarn | {"attn_factor": 3.0}) == config(rope_scaling=yarn)
    assert config(rope_parameters={"rope_type": "default", "factor": 2.0}) == config()
    assert [line.split(": ")[1] for line in caplog.messages] == ["rope_scaling.attn_factor", "rope_parameters.factor"]


def test_code_beside_a_standard_architecture_is_not_run(caplog):
    assert config(auto_map={"AutoModelForCausalLM": "modeling.Model"}) == config()
    assert caplog.messages == ["auto_map names code that is not run; the model is transformers' own LlamaForCausalLM"]
    with refused(ValueError, "['OwnForCausalLM']"):
        config(auto_map={"AutoModelForCausalLM": "modeling.Model"}, architectures=["OwnForCausalLM"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"qkv_bias": True, "attention_bias": True}, "attention_bias"),
        ({"qkv_bias": True, "qk_norm": True}, "qk_norm"),
        ({"sliding_window": 4, "tie_word_embeddings": True, "sinks": True}, "sinks=True"),
        ({"norms": "after", "attention_bias": True}, "norms='after'"),
    ],
)
def test_what_transformers_cannot_say(changes: dict[str, Any], word: str):
    with refused(ValueError, word, "cannot say so"):
        config_to_hf(dataclasses.replace(config(), **changes))
