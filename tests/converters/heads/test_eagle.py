"""Draft head folders in and out."""

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from eagle_jax.configs.heads import EagleConfig
from eagle_jax.configs.target import Latent, Rope
from eagle_jax.converters import load_head, save_head
from eagle_jax.models.eagle import Head
from tests.converters.folders import ENTRIES, assert_same, entries, head, head3, refused, target, tensors, write

# What the authors' configs hold, and no more.
PUBLISHED = ENTRIES | {"num_hidden_layers": 1, "pretraining_tp": 1, "use_cache": True, "torch_dtype": "float16"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4, "rope_theta": 7.0},
        {"head_dim": 6},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4},
    ],
)
def test_round_trip(tmp_path: pathlib.Path, changes: dict[str, Any]):
    """In the first format that can say it."""
    save_head(head(**changes), tmp_path / "new")
    assert_same(load_head(tmp_path / "new", target()), head(**changes))


@pytest.mark.parametrize("fc_bias", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_flags_come_from_the_tensors(tmp_path: pathlib.Path, fc_bias: bool, qkv_bias: bool, layers: int):
    made = dataclasses.replace(head().config.layers, qkv_bias=qkv_bias, num_hidden_layers=layers)
    made_head = Head.init(EagleConfig(layers=made, fc_bias=fc_bias), jax.random.key(3))
    wrong = PUBLISHED | {"bias": not fc_bias, "qkv_bias": not qkv_bias, "num_hidden_layers": 7}
    assert_same(load_head(write(tmp_path, tensors(made_head), wrong), target()), made_head)


def test_sizes_come_from_the_tensors(tmp_path: pathlib.Path):
    made = head(num_key_value_heads=1, intermediate_size=20)
    wrong = PUBLISHED | {"num_key_value_heads": 4, "intermediate_size": 999, "hidden_size": 8}
    assert_same(load_head(write(tmp_path, tensors(made), wrong), target()), made)


def test_own_embedding_is_dropped(tmp_path: pathlib.Path):
    lm = target()
    save_head(head(), tmp_path / "with", target=lm)
    assert (tmp_path / "with" / "model.safetensors").stat().st_size > 11 * 8 * 4
    assert_same(load_head(tmp_path / "with", lm), head())


def test_config_of_another_family(tmp_path: pathlib.Path):
    """Heads for Qwen2 and Mixtral are dense Llama layers; their configs may repeat the target's keys."""
    qwen = {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
    mixtral = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    for more in (qwen, mixtral, {"architectures": ["LlamaForCausalLMEagle"]}):
        assert_same(load_head(write(tmp_path, tensors(head()), PUBLISHED | more), target()), head())


@pytest.mark.parity
def test_pickle_weights_in_half_precision(tmp_path: pathlib.Path):
    torch = pytest.importorskip("torch")
    state = {name: torch.tensor(value).half() for name, value in tensors(head()).items()}
    state["embed_tokens.weight"] = torch.zeros(11, 8).half()
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    loaded = load_head(tmp_path, target())
    assert loaded.dtype == np.float16
    np.testing.assert_array_equal(loaded.params["fc"]["weight"], state["fc.weight"].numpy())
    assert load_head(tmp_path, target(), "bfloat16").dtype == "bfloat16"


@pytest.mark.parity
def test_a_pickle_as_the_authors_write_it(tmp_path: pathlib.Path):
    """Half precision, whole numbers and booleans in one file."""
    torch = pytest.importorskip("torch")
    made = head3()
    made = dataclasses.replace(made, params=jax.tree.map(lambda leaf: leaf.astype("float16"), made.params))
    state = {name: torch.tensor(value) for name, value in tensors(made).items()}
    assert (state["d2t"].dtype, state["t2d"].dtype) == (torch.int64, torch.bool)
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(entries(made)))
    assert_same(load_head(tmp_path, target()), made)
    state["embed_tokens.weight"] = torch.tensor(np.asarray(target().params["embed_tokens"]["embedding"]) + 1)
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert load_head(tmp_path, target()).config.own_embedding


def test_target_given_as_head(tmp_path: pathlib.Path):
    with refused(ValueError, "holds a target model", "expected a head", "the target in the other place"):
        load_head(write(tmp_path, tensors(target())), target())


def test_head_for_another_target(tmp_path: pathlib.Path):
    save_head(head(), tmp_path / "head", target=target())
    with refused(ValueError, "features of 8", "the target's have 16"):
        load_head(tmp_path / "head", target(hidden_size=16))
    with refused(ValueError, "[11, 8]", "[13, 8]", "another model"):
        load_head(tmp_path / "head", target(vocab_size=13))
    save_head(head(), tmp_path / "bare")
    with refused(ValueError, "vocabulary of 11 tokens", "the target has 13"):
        load_head(tmp_path / "bare", target(vocab_size=13))


def test_a_target_that_was_resized_after_the_training(tmp_path: pathlib.Path):
    """Two tokens more, or rows of padding: the head drafts none of them, with an embedding of its own or without."""
    for i, made in enumerate((head3(), head3(own_embedding=True), head3({"hidden_size": 4}, own_embedding=True))):
        folder = tmp_path / str(i)
        save_head(made, folder, target=target())
        for size in (13, 75):
            bigger = target(vocab_size=size)
            loaded = load_head(folder, bigger)
            assert loaded.config.layers.vocab_size == size and loaded.vocabulary.tolist() == made.vocabulary.tolist()
            if loaded.config.own_embedding:
                rows = loaded.params["embed_tokens"]["embedding"]
                np.testing.assert_array_equal(rows[:11], made.params["embed_tokens"]["embedding"])
                assert rows.shape[0] == size and np.isfinite(rows).all()
    with refused(ValueError, "vocabulary of 11 tokens", "the target has 5000"):
        load_head(tmp_path / "0", target(vocab_size=5000))


LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "latent": Latent(rank=6, query_rank=5, plain_dim=2, value_dim=3, eps=1e-5),
    "attention_multiplier": 6**-0.5,
    "rope": Rope(theta=7.0, interleaved=True),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("query_rank", [5, None])
def test_latent_attention_round_trip(tmp_path: pathlib.Path, query_rank: int | None, scaled: bool):
    """In the first format that can say it, which is SGLang's; others are refused."""
    latent = dataclasses.replace(LATENT["latent"], query_rank=query_rank)
    changes = LATENT | {"latent": latent}
    if scaled:
        stretch = 0.1 * 0.5 * math.log(4) + 1
        rope = {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1 / stretch}
        changes |= {"rope": dataclasses.replace(LATENT["rope"], **rope)}
        changes["attention_multiplier"] = 6**-0.5 * stretch**2
    made = head3(changes, fc_norm=True, norm_output=True)
    save_head(made, tmp_path / "new")
    stated = json.loads((tmp_path / "new" / "config.json").read_text())
    assert stated["architectures"] == ["Eagle3DeepseekV2ForCausalLM"] and stated["kv_lora_rank"] == 6
    loaded = load_head(tmp_path / "new", target())
    np.testing.assert_allclose(loaded.config.layers.attention_scale, made.config.layers.attention_scale, rtol=1e-8)
    same = {"attention_multiplier": made.config.layers.attention_multiplier}
    config = dataclasses.replace(loaded.config, layers=dataclasses.replace(loaded.config.layers, **same))
    assert_same(dataclasses.replace(loaded, config=config), made)
    for format in ("safeailab", "speculators"):
        with refused(ValueError, f"readers of the {format} format know no latent", "save it as sglang"):
            save_head(head3(changes), tmp_path / format, format=format)


def test_latent_attention_of_a_numbered_head_for_kimi(tmp_path: pathlib.Path):
    """TorchSpec writes such heads for vLLM, which counts layers that streams enter; elsewhere they leave."""
    values = tensors(head3(LATENT))
    numbered = {name.replace("midlayer.", "layers.0."): value for name, value in values.items()}
    stated = entries(head3(LATENT), "sglang") | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    stated |= {"_torchspec_version": "0.1", "n_routed_experts": 1, "first_k_dense_replace": 0}
    for model_type, held, taps in (
        ("kimi_k2", numbered, (0, 1, 2)),
        ("kimi_k2", values, (1, 2, 3)),
        ("deepseek_v3", numbered, (1, 2, 3)),
    ):
        folder = tmp_path / f"{model_type}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        loaded = load_head(write(folder, held, stated | {"model_type": model_type}), target(num_hidden_layers=3))
        assert loaded.taps == taps


def test_wrong_latent_attention(tmp_path: pathlib.Path):
    values, stated = tensors(head3(LATENT)), entries(head3(LATENT), "sglang")
    for changes, words in (
        ({"kv_lora_rank": 7}, ["kv_a_layernorm.weight", "[6]", "expected [7]"]),
        ({"q_lora_rank": None}, ["lacks 1 tensor", "midlayer.self_attn.q_proj.weight"]),
        ({"qk_rope_head_dim": 0}, ["qk_rope_head_dim=0"]),
        ({"v_head_dim": None}, ["no v_head_dim"]),
    ):
        with refused(ValueError, *words):
            load_head(write(tmp_path, values, stated | changes), target())
    with pytest.raises(ValueError, match="latent=Latent.*expected Llama's"):
        EagleConfig(layers=head3(LATENT).config.layers, fc_bias=True)
