"""Target folders in and out."""

import dataclasses
import json
import pathlib
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import ENTRIES, assert_same, refused, target, tensors, write

from eagle_jax.configs.target import Experts
from eagle_jax.converters import config_to_hf, llama, load_target, names, save_target
from eagle_jax.converters.files import Weights
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 3}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
}
GEMMA2 = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
GEMMA3 = GEMMA2 | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 4}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 6}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 6},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4},
        QWEN2 | {"tie_word_embeddings": True},
        QWEN3 | {"attention_bias": True},
        MIXTRAL,
        QWEN3_MOE | {"mlp_only_layers": [1]},
        GEMMA2 | {"head_dim": 6, "tie_word_embeddings": False},
        GEMMA3,
    ],
    ids=["plain", "biases", "tied", "window", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "gemma3"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip(tmp_path: pathlib.Path, changes: dict[str, Any], dtype: str):
    lm = target(**changes)
    save_target(lm, tmp_path / "new")
    loaded = load_target(tmp_path / "new", dtype)
    assert loaded.dtype == dtype
    if dtype == "float32":
        assert_same(loaded, lm)
    else:
        save_target(loaded, tmp_path / "again")
        assert_same(load_target(tmp_path / "again"), loaded)


def test_kernels_lie_transposed(tmp_path: pathlib.Path):
    values = tensors(target())
    assert values["model.layers.1.self_attn.k_proj.weight"].shape == (4, 8)
    lm = load_target(write(tmp_path, values))
    kernel = lm.params["layers_1"]["self_attn"]["k_proj"]["weight"]
    np.testing.assert_array_equal(kernel, values["model.layers.1.self_attn.k_proj.weight"])
    np.testing.assert_array_equal(lm.params["lm_head"]["weight"], values["lm_head.weight"])


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        (MIXTRAL, ["block_sparse_moe.gate", "block_sparse_moe.experts.2.w2"]),
        (QWEN3_MOE, ["mlp.gate", "mlp.experts.2.down_proj"]),
    ],
    ids=["mixtral", "qwen3_moe"],
)
def test_experts_lie_one_by_one_and_are_stacked(tmp_path: pathlib.Path, entries: dict[str, Any], names: list[str]):
    lm = target(**entries)
    values = tensors(lm)
    stack = lm.params["layers_1"]["mlp"]["experts"]["down"]
    np.testing.assert_array_equal(values[f"model.layers.1.{names[1]}.weight"], stack[2])
    loaded = load_target(write(tmp_path, values, ENTRIES | entries))
    assert_same(loaded, lm)

    missing = f"model.layers.0.{names[1]}.weight"
    del values[missing]
    with refused(ValueError, "lacks 1 tensor", missing):
        load_target(write(tmp_path, values, ENTRIES | entries))
    values[missing] = np.zeros((8, 7), np.float32)
    with refused(ValueError, missing, "[8, 7]"):
        load_target(write(tmp_path, values, ENTRIES | entries))


def test_stored_dtype_is_kept_and_double_is_not(tmp_path: pathlib.Path):
    values = tensors(target())
    halves = {name: value.astype(np.float16) for name, value in values.items()}
    assert load_target(write(tmp_path, halves)).dtype == jnp.float16
    doubles = {name: value.astype(np.float64) for name, value in values.items()}
    loaded = load_target(write(tmp_path, doubles))
    assert loaded.dtype == jnp.float32
    assert_same(loaded, target())


def test_old_rotary_buffers_are_left_alone(tmp_path: pathlib.Path):
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1, np.float32),
        "model.rotary_emb.inv_freq": np.ones(1, np.float32),
    }
    assert_same(load_target(write(tmp_path, tensors(target()) | buffers)), target())


def test_tied_output_may_be_stored_if_it_is_the_embedding(tmp_path: pathlib.Path):
    lm = target(tie_word_embeddings=True)
    values = tensors(lm)
    values["lm_head.weight"] = values[llama.EMBEDDING]
    entries = ENTRIES | {"tie_word_embeddings": True}
    assert_same(load_target(write(tmp_path, values, entries)), lm)
    values["lm_head.weight"] = values[llama.EMBEDDING] + 1
    with refused(ValueError, "tie_word_embeddings", "lm_head.weight"):
        load_target(write(tmp_path, values, entries))


@pytest.mark.parity
def test_pickle_weights(tmp_path: pathlib.Path):
    torch = pytest.importorskip("torch")
    lm = target()
    torch.save({name: torch.tensor(value) for name, value in tensors(lm).items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(ENTRIES))
    assert_same(load_target(tmp_path), lm)


def test_never_two_tensors_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    taken: list[weakref.ref[np.ndarray]] = []
    take = Weights.take

    def watched(weights: Weights, name: str) -> np.ndarray:
        assert not any(value() is not None for value in taken)
        value = take(weights, name)
        taken.append(weakref.ref(value))
        return value

    monkeypatch.setattr(Weights, "take", watched)
    save_target(target(), tmp_path)
    load_target(tmp_path, "bfloat16")
    assert len(taken) == len(tensors(target()))


def test_missing_tensor(tmp_path: pathlib.Path):
    values = tensors(target())
    del values["model.layers.1.mlp.up_proj.weight"], values["model.norm.weight"]
    with refused(ValueError, "lacks 2 tensors", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        load_target(write(tmp_path, values))


def test_unknown_tensor(tmp_path: pathlib.Path):
    values = tensors(target()) | {"model.layers.0.self_attn.q_norm.weight": np.ones(2, np.float32)}
    with refused(ValueError, "holds 1 tensor that", "model.layers.0.self_attn.q_norm.weight [2]"):
        load_target(write(tmp_path, values))


def test_more_layers_than_the_config_says(tmp_path: pathlib.Path):
    with refused(ValueError, "holds 9 tensors", "model.layers.1.", "and 6 more"):
        load_target(write(tmp_path, tensors(target()), ENTRIES | {"num_hidden_layers": 1}))


def test_misshapen_tensor(tmp_path: pathlib.Path):
    with refused(ValueError, "tensor model.embed_tokens.weight", "[11, 8]", "expected [13, 8]"):
        load_target(write(tmp_path, tensors(target()), ENTRIES | {"vocab_size": 13}))


def test_quantized_tensor(tmp_path: pathlib.Path):
    values = tensors(target())
    values["model.layers.0.mlp.up_proj.weight"] = values["model.layers.0.mlp.up_proj.weight"].astype(np.int8)
    with refused(ValueError, "model.layers.0.mlp.up_proj.weight", "int8", "float32"):
        load_target(write(tmp_path, values))


@pytest.mark.parametrize("dtype", ["float8", "int32", 3])
def test_dtype_that_is_none(tmp_path: pathlib.Path, dtype: object):
    with refused(ValueError, "expected float32, bfloat16 or float16"):
        load_target(tmp_path, dtype)


def test_config_errors_name_the_file(tmp_path: pathlib.Path):
    with refused(ValueError, str(tmp_path / "config.json"), "hidden_act='gelu'"):
        load_target(write(tmp_path, tensors(target()), ENTRIES | {"hidden_act": "gelu"}))


def test_no_folder_and_no_config(tmp_path: pathlib.Path):
    with refused(FileNotFoundError, "no model folder"):
        load_target(tmp_path / "nothing")
    with refused(FileNotFoundError, "config.json is missing"):
        load_target(tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}},
        {"tie_word_embeddings": True, "attention_bias": True},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 3},
        QWEN2 | {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1},
        QWEN3 | {"tie_word_embeddings": True},
        MIXTRAL | {"num_hidden_layers": 1},
        QWEN3_MOE | {"num_hidden_layers": 1, "norm_topk_prob": True},
        GEMMA2 | {"head_dim": 6, "sliding_window": 3},
        GEMMA3 | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3},
    ],
    ids=["yarn", "tied", "window", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "gemma3"],
)
def test_to_transformers_and_back(tmp_path: pathlib.Path, changes: dict[str, Any]):
    """What we write transformers reads, computes alike, and writes so that we read it."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    lm = target(**changes)
    save_target(lm, tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    tokens = np.arange(9, dtype=np.int32)[None]
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens).long()).logits.numpy()
    np.testing.assert_allclose(lm(jnp.asarray(tokens))[1], expected, rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    assert_same(load_target(tmp_path / "theirs"), lm)
    assert config_to_hf(lm.config)["model_type"] == theirs.config.model_type


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        dataclasses.replace(TINY, tie_word_embeddings=True),
        dataclasses.replace(
            TINY,
            experts=Experts(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, norm_topk_prob=True),
        ),
    ],
    ids=["plain", "tied", "experts"],
)
def test_tensors_by_their_names_are_the_parameters(config):
    lm = LM.init(config, jax.random.key(0))
    named = dict(names.tensors(llama.rules(config), lm.params))
    jax.tree.map(np.testing.assert_array_equal, llama.from_hf_names(named, config), lm.params)
    if config.tie_word_embeddings:
        embedding = named["model.embed_tokens.weight"]
        llama.from_hf_names(named | {"lm_head.weight": embedding.copy()}, config)
        with pytest.raises(ValueError, match="ties its matrices, and lm_head.weight is unlike"):
            llama.from_hf_names(named | {"lm_head.weight": 0 * embedding}, config)
    if config.experts is not None:
        key = next(key for key in named if ".experts.1." in key)
        with pytest.raises(ValueError, match="has shape \\(3,\\); expected"):
            llama.from_hf_names(named | {key: np.zeros(3, np.float32)}, config)
