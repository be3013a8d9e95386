"""The part of a multimodal folder that reads text is loaded, and the other parts are left alone."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle_jax.configs.target import Experts, Latent, LlamaConfig, Rope
from eagle_jax.converters import config_from_hf, load_target, save_target
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

FILE = "model.safetensors"
CONFIG = LlamaConfig(
    **{name: getattr(TINY, name) for name in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim")},
    num_key_value_heads=TINY.num_key_value_heads,
    intermediate_size=24,
    num_hidden_layers=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope=Rope(theta=1e4, interleaved=True),
    sliding_window=8,
    chunked=True,
    full_attention_layers=(1,),
    no_rope_layers=(1,),
    no_rope_query_beta=0.5,
    no_rope_query_step=8,
    qk_norm=True,
    qk_norm_over="rotated_head_unscaled",
    experts=Experts(
        num_experts=4,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        norm_topk_prob=False,
        mlp_only_layers=(0,),
        scores="sigmoid",
        shared_intermediate_size=16,
        scales_input=True,
    ),
    layout="llama4",
)


@pytest.fixture
def folder(tmp_path):
    """A Llama 4 that reads text and images, as transformers saves it."""
    save_target(LM.init(CONFIG, jax.random.key(0)), tmp_path)
    tensors = load_file(tmp_path / FILE)
    assert tensors["model.layers.1.feed_forward.experts.gate_up_proj"].shape == (4, CONFIG.hidden_size, 32)
    images = {
        "vision_model.layernorm_pre.weight": np.ones(4, np.float32),
        "multi_modal_projector.linear_1.weight": np.ones((4, 4), np.float32),
    }
    save_file({f"language_model.{name}": value for name, value in tensors.items()} | images, tmp_path / FILE)
    text = json.loads((tmp_path / "config.json").read_text())
    assert text.pop("architectures") == ["Llama4ForCausalLM"] and text["model_type"] == "llama4_text"
    whole = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "vision_config": {"a": 1}}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text}))
    return tmp_path


def test_the_text_part_of_llama_4(folder, caplog):
    with caplog.at_level(logging.INFO, logger="eagle_jax.converters"):
        loaded = load_target(folder)
    assert loaded.config == CONFIG
    assert "the parts of this llama4 that read no text are left unread" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, loaded.params, LM.init(CONFIG, jax.random.key(0)).params)


WINDOWED = {"sliding_window": 8, "full_attention_layers": (1,), "local_rope": Rope(theta=1e4)}
GEMMA3 = dataclasses.replace(
    TINY,
    num_hidden_layers=2,
    norms="around",
    norm_plus_one=True,
    activation="gelu_tanh",
    embedding_multiplier=TINY.hidden_size**0.5,
    attention_multiplier=0.25,
    qk_norm=True,
    rope=Rope(theta=1e6),
    tie_word_embeddings=True,
    **WINDOWED,
)
LATENT = dataclasses.replace(
    TINY,
    num_hidden_layers=2,
    num_key_value_heads=TINY.num_attention_heads,
    head_dim=4,
    rope=Rope(theta=1e4, interleaved=True),
    latent=Latent(rank=8, query_rank=12, plain_dim=6, value_dim=5),
    attention_multiplier=10**-0.5,
    experts=Experts(
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        norm_topk_prob=True,
        mlp_only_layers=(0,),
        scores="sigmoid",
        correction_bias=True,
        shared_intermediate_size=16,
    ),
    layout="deepseek_v3",
)


MISTRAL = dataclasses.replace(TINY, num_hidden_layers=2, sliding_window=8)
MINISTRAL = dataclasses.replace(
    MISTRAL,
    sliding_window=None,
    rope=Rope(theta=1e4, kind="yarn", factor=4.0, original_max_position_embeddings=16, query_beta=0.1),
)
UNIFIED = config_from_hf(
    {"model_type": "gemma4_unified_text", "vocab_size": 20, "hidden_size": 8, "intermediate_size": 8}
    | {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    | {"global_head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]}
)


@pytest.mark.parametrize(
    "config, whole, inner, prefix, other",
    [
        (MISTRAL, ("mistral3", "Mistral3"), "mistral", "language_model.", "vision_tower.ln_pre.weight"),
        (MINISTRAL, ("mistral3", "Mistral3"), "ministral3", "language_model.", "multi_modal_projector.norm.weight"),
        (
            UNIFIED,
            ("gemma4_unified", "Gemma4Unified"),
            "gemma4_unified_text",
            "model.language_model.",
            "model.vision_embedder.patch_dense.weight",
        ),
        (GEMMA3, ("gemma3", "Gemma3"), "gemma3_text", "language_model.", "vision_tower.vision_model.head.weight"),
        (GEMMA3, ("gemma3", "Gemma3"), "gemma3_text", "model.language_model.", "model.vision_tower.head.weight"),
        (LATENT, ("kimi_k25", "KimiK25"), "kimi_k2", "language_model.", "mm_projector.proj.0.weight"),
    ],
)
def test_the_text_part_of_other_folders(tmp_path, config, whole, inner, prefix, other):
    """As they were published, and Gemma 3 as transformers 5 saves it."""
    made = LM.init(config, jax.random.key(0))
    save_target(made, tmp_path)
    within = "model." if prefix.startswith("model.") else ""
    tensors = {prefix + name.removeprefix(within): value for name, value in load_file(tmp_path / FILE).items()}
    save_file(tensors | {other: np.ones((4, 4), np.float32)}, tmp_path / FILE)
    text = json.loads((tmp_path / "config.json").read_text()) | {"model_type": inner}
    around = {"architectures": [f"{whole[1]}ForConditionalGeneration"], "model_type": whole[0], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(around | {"text_config": text}))
    loaded = load_target(tmp_path)
    assert loaded.config == config
    jax.tree.map(np.testing.assert_array_equal, loaded.params, made.params)


def test_another_text_part_is_refused():
    text = {"model_type": "mistral4", "hidden_size": 8}
    with pytest.raises(ValueError, match="'mistral4'.* in a mistral3; expected the config of a mistral or ministral3"):
        config_from_hf({"model_type": "mistral3", "text_config": text})


def test_a_tensor_of_no_part_is_refused(folder):
    tensors = load_file(folder / FILE)
    save_file(tensors | {"audio.weight": np.ones(4, np.float32)}, folder / FILE)
    with pytest.raises(ValueError, match=r"audio\.weight"):
        load_target(folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"no_rope_layers": [1, 0, 2]}, "no_rope_layers=.*; expected 1, or 0 for no rotation"),
        ({"moe_layers": [7]}, r"moe_layers=\[7\]; expected a list of layers from 0 to 1"),
        ({"moe_layers": None, "interleave_moe_layer_step": 0}, "interleave_moe_layer_step=0; expected at least 1"),
        (
            {"layer_types": ["sliding_attention"] * 2},
            "layer_types=.*; expected 'full_attention' or 'chunked_attention'",
        ),
        ({"attention_chunk_size": None}, "layer_types names 'chunked_attention', and there is no attention_chunk_size"),
        ({"floor_scale": 0}, "no_rope_query_step=0; expected a positive number"),
    ],
)
def test_what_llama_4_cannot_say(folder, change, message):
    whole = json.loads((folder / "config.json").read_text())
    whole["text_config"] |= change
    (folder / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=message):
        load_target(folder)
