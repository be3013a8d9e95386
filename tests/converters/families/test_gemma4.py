"""Gemma 4's folders: parts that read no text, tensors that nothing reads, and spellings of its `config.json`."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle_jax.configs.target import Rope
from eagle_jax.converters import config_from_hf, config_to_hf, load_target, save_target
from eagle_jax.models.lm import LM

FULL, WINDOWED = "full_attention", "sliding_attention"
ENTRIES = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "global_head_dim": 8,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "max_position_embeddings": 64,
    "sliding_window": 4,
    "layer_types": [WINDOWED, FULL, WINDOWED, FULL],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 20,
}
MOE = {"enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 4}


@pytest.mark.matrix
@pytest.mark.parametrize("more", [{}, MOE], ids=["dense", "experts"])
def test_the_text_part_of_a_published_folder(more, tmp_path):
    """It has towers for images and sounds, and keys and values of the layers that read those of others."""
    config = config_from_hf(ENTRIES | more)
    lm = LM.init(config, jax.random.key(0))
    save_target(lm, tmp_path)
    tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in read(tmp_path).items()}
    assert "model.language_model.layers.3.self_attn.k_proj.weight" not in tensors
    one = np.ones(4, np.float32)
    unread = ("vision_tower.a", "embed_vision.a", "audio_tower.a", "embed_audio.a")
    unread += tuple(f"language_model.layers.3.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm"))
    save_file(tensors | {f"model.{name}": one for name in unread}, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    assert text.pop("architectures") == ["Gemma4ForCausalLM"]
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    again = load_target(tmp_path)
    assert again.config == config
    jax.tree.map(np.testing.assert_array_equal, again.params, lm.params)
    own = "model.layers.0.self_attn.v_norm.weight"  # norms of values have no scale
    save_file(read(tmp_path) | {own: one}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=re.escape(own)):
        load_target(tmp_path)


def read(folder):
    return load_file(folder / "model.safetensors")


def test_heads_in_the_spelling_that_transformers_writes():
    changes = {str(i): {"head_dim": 8, "num_key_value_heads": 1} for i in (1, 3)}
    entries = {name: value for name, value in ENTRIES.items() if "global" not in name}
    assert config_from_hf(entries | {"per_layer_config": changes}) == config_from_hf(ENTRIES)
    padded = {
        f"{int(i):02}": one for i, one in changes.items()
    }  # as transformers writes the numbers of ten layers and more
    assert config_from_hf(entries | {"per_layer_config": padded}) == config_from_hf(ENTRIES)
    for wrong in (
        {"0": changes["1"]} | changes,
        {"first": changes["1"]},
        {"1": changes["1"]},
        {"1": {"sliding_window": 3}},
        [1],
    ):
        with pytest.raises(ValueError, match="per_layer_config="):
            config_from_hf(entries | {"per_layer_config": wrong})


def test_the_last_layer_never_has_a_window():
    config = config_from_hf(ENTRIES | {"layer_types": [FULL, WINDOWED, FULL, WINDOWED]})
    assert config.full_attention_layers == (0, 2, 3)


def test_other_heads_need_values_that_are_keys():
    """transformers reads `num_global_key_value_heads` beside `attention_k_eq_v` alone."""
    config = config_from_hf(ENTRIES | {"attention_k_eq_v": False})
    assert config.by_layer.num_key_value_heads == 2
    other = dataclasses.replace(config, by_layer=dataclasses.replace(config.by_layer, num_key_value_heads=1))
    with pytest.raises(ValueError, match=r"by_layer\.num_key_value_heads=1: .*cannot say so"):
        config_to_hf(other)


def test_rotation():
    config = config_from_hf(ENTRIES)
    assert config.rope_of(0) == Rope(theta=10000.0)
    assert config.rope_of(1) == Rope(theta=1000000.0, kind="proportional", partial_rotary_factor=0.25)
    settings = {
        FULL: {"rope_type": "default", "rope_theta": 5.0},
        WINDOWED: {"rope_type": "default", "rope_theta": 6.0},
    }
    assert config_from_hf(ENTRIES | {"rope_parameters": settings}).rope_of(3) == Rope(theta=5.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not supported"),
        ({"hidden_activation": "silu"}, "hidden_activation='silu' is not supported"),
        ({"layer_types": [FULL]}, "layer_types=['full_attention']; expected"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers=3 of 4 layers; expected each of them"),
        ({"enable_moe_block": True}, "the config has no num_experts; expected a whole number"),
        (
            {"rope_parameters": {FULL: {"rope_theta": 5.0, "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor=0.5; expected 1: heads are rotated whole",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config_from_hf(ENTRIES | changes)
