"""What a caller asks of a config wins over every spelling that the file has."""

import json
import pathlib
from typing import Any

import pytest

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families.config import config_from_hf, config_to_hf
from eagle_jax.converters.heads.dflash_config import read_config as read_dflash
from eagle_jax.converters.heads.entries import read_entries
from eagle_jax.converters.llama import read_config
from eagle_jax.converters.overrides import with_changes
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.testing import TINY

PLAIN = {key: value for key, value in config_to_hf(TINY).items() if not key.startswith("rope")}
LINEAR = {"rope_type": "linear", "factor": 2.0}
# One file in every way of writing it: base angle 500 and linear scaling by 2.
SPELLINGS: dict[str, dict[str, Any]] = {
    "transformers 4": {"rope_theta": 500.0, "rope_scaling": LINEAR},
    "transformers 5": {"rope_parameters": {"rope_theta": 500.0, **LINEAR}},
    "both": {"rope_theta": 500.0, "rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 500.0, **LINEAR}},
    "the angle within": {"rope_scaling": {"rope_theta": 500.0, **LINEAR}},
}


def read(entries: dict[str, Any], changes: dict[str, Any]) -> LlamaConfig:
    return config_from_hf(with_changes(entries, changes))


def test_rotary_settings_in_every_spelling_of_file_and_change():
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    cases: list[tuple[dict[str, Any], tuple[float, str, float]]] = [
        ({}, (500.0, "linear", 2.0)),
        ({"rope_theta": 7.0}, (7.0, "linear", 2.0)),
        ({"rope_scaling": None}, (500.0, "default", 1.0)),
        ({"rope_scaling": llama3}, (500.0, "llama3", 4.0)),
        ({"rope_scaling": llama3, "rope_theta": 7.0}, (7.0, "llama3", 4.0)),
        ({"rope_parameters": {"rope_type": "default"}}, (500.0, "default", 1.0)),
        ({"rope_parameters": {"rope_theta": 9.0, **llama3}}, (9.0, "llama3", 4.0)),
        ({"rope_parameters": llama3, "rope_theta": 7.0}, (7.0, "llama3", 4.0)),
    ]
    for spelling, written in SPELLINGS.items():
        for changes, expected in cases:
            rope = read(PLAIN | written, changes).rope
            assert (rope.theta, rope.kind, rope.factor) == expected, (spelling, changes)
    assert read(PLAIN | {"rope_parameters": {"rope_type": "default"}}, {"rope_theta": 7.0}).rope.theta == 7.0
    with pytest.raises(ValueError, match="rope_theta is 7.0 and 9.0 in rope_parameters; give one"):
        read(PLAIN, {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 9.0}})
    with pytest.raises(ValueError, match="rope_scaling is 3"):
        read(PLAIN | SPELLINGS["transformers 5"], {"rope_scaling": 3})


def test_two_kinds_of_layers_have_their_own():
    gemma = {key: value for key, value in PLAIN.items() if key not in ("architectures", "hidden_act", "mlp_bias")}
    gemma |= {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8}
    gemma |= {"tie_word_embeddings": True, "layer_types": ["sliding_attention", "full_attention"]}
    both = {"full_attention": {"rope_theta": 500.0, **LINEAR}, "sliding_attention": {"rope_theta": 50.0}}
    config = read(gemma | {"rope_parameters": both}, {"rope_theta": 7.0, "rope_local_base_freq": 3.0})
    assert config.local_rope is not None
    assert (config.rope.theta, config.rope.kind, config.local_rope.theta) == (7.0, "linear", 3.0)
    assert read(gemma | {"rope_parameters": both}, {"rope_scaling": None}).rope.kind == "default"
    assert config.full_attention_layers == (1,)
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        assert read(gemma, {name: 1}).sliding_window is None, "every layer sees everything"


def test_a_setting_with_two_names():
    mixtral = {**PLAIN, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
    mixtral = {key: value for key, value in mixtral.items() if key not in ("attention_bias", "mlp_bias", "head_dim")}
    for name in ("num_experts", "num_local_experts"):
        assert read(mixtral, {name: 2}).experts.num_experts == 2


def test_a_target_that_is_loaded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | SPELLINGS["transformers 5"]))
    assert read_config(tmp_path, {"rope_theta": 7.0}).rope.theta == 7.0
    assert read_config(tmp_path).rope.theta == 500.0


def test_heads_whose_config_lies_in_an_object():
    layer = {**PLAIN, "model_type": "llama", **SPELLINGS["transformers 5"]}
    speculators = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, "norm_before_residual": True}
    for changes, expected in (({"rope_theta": 7.0}, 7.0), ({"rope_parameters": {"rope_theta": 9.0}}, 9.0)):
        stated = read_entries(with_changes(speculators, changes), eagle3=True).layer
        assert stated["rope_parameters"]["rope_theta"] == expected
    assert read_entries(with_changes(speculators, {"rms_norm_eps": 0.5}), eagle3=True).layer["rms_norm_eps"] == 0.5
    assert layer["rms_norm_eps"] != 0.5, "the file's own entries stay"
    flat = {**PLAIN, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1 + 1]}}
    changes = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    assert read_entries(with_changes(flat, changes), eagle3=True).taps == (0, 1, 2), (
        "the layers whose inputs are tapped"
    )


def test_a_dflash_heads_object():
    entries = {
        **PLAIN,
        "model_type": "qwen3",
        "architectures": ["DFlashDraftModel"],
        "num_target_layers": 2,
        "rope_theta": 1e4,
    }
    entries |= {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1], "block_size": 4}}
    info = {"fc.weight": TensorInfo((32, 32), "float32", pathlib.Path("x"))}
    changed = read_dflash(info, with_changes(entries, {"mask_token_id": 5, "target_layer_ids": [0]}))
    assert (changed.mask_token_id, changed.taps, changed.block_size) == (5, (1,), 4)
