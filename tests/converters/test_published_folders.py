"""Folders laid out as published heads are, in small: they load, go back as they came, and draft."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of
from folders import config, target, write
from safetensors.numpy import load_file

from eagle_jax.converters import load_head, save_head
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import CommittedRows, View
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from tests.converters.public_configs import VICUNA

WIDTH, MLP, HEADS, VOCAB, DRAFTED, LAYERS = 16, 20, 4, 24, 10, 8

# The authors' training config, which their EAGLE-3 heads carry as it is: no rope_theta.
AUTHORS: dict[str, Any] = {key: value for key, value in VICUNA.items() if key != "_name_or_path"} | {
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
}
SPECFORGE = AUTHORS | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": DRAFTED,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_window_layers": 36,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "base_model_ep_plan": None,
    "draft_vocab_size": DRAFTED,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "embed_requires_grad": False,
    "fc_norm": False,
    "has_no_defaults_at_init": False,
    "norm_before_fc": False,
    "norm_before_residual": True,
    "norm_output": False,
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [], "verifier": {"name_or_path": "owner/model"}},
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "target_hidden_size": None,
    "torch_dtype": "bfloat16",
    "transformer_layer_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 4,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "max_position_embeddings": 40960,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCAB,
    },
    "transformers_version": "5.0.0",
}


def eagle1(kv_heads: int, **stated: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Names and shapes in the file, and the config."""
    h, kv = WIDTH, kv_heads * WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCAB, h),
        "fc.weight": (h, 2 * h),
        "layers.0.self_attn.q_proj.weight": (h, h),
        "layers.0.self_attn.k_proj.weight": (kv, h),
        "layers.0.self_attn.v_proj.weight": (kv, h),
        "layers.0.self_attn.o_proj.weight": (h, h),
        "layers.0.mlp.gate_proj.weight": (MLP, h),
        "layers.0.mlp.up_proj.weight": (MLP, h),
        "layers.0.mlp.down_proj.weight": (h, MLP),
        "layers.0.post_attention_layernorm.weight": (h,),
    }
    if stated.get("bias", True):
        shapes["fc.bias"] = (h,)
    if stated.get("qkv_bias"):
        shapes |= {f"layers.0.self_attn.{x}_proj.bias": (h if x == "q" else kv,) for x in "qkv"}
    return shapes, AUTHORS | {"num_key_value_heads": kv_heads} | stated


def eagle3(
    kv_heads: int,
    stated: dict[str, Any],
    layer: str = "midlayer",
    head_dim: int = WIDTH // HEADS,
    drafted: int = DRAFTED,
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    h, q, kv = WIDTH, HEADS * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, 3 * h),
        f"{layer}.hidden_norm.weight": (h,),
        f"{layer}.input_layernorm.weight": (h,),
        f"{layer}.self_attn.q_proj.weight": (q, 2 * h),
        f"{layer}.self_attn.k_proj.weight": (kv, 2 * h),
        f"{layer}.self_attn.v_proj.weight": (kv, 2 * h),
        f"{layer}.self_attn.o_proj.weight": (h, q),
        f"{layer}.mlp.gate_proj.weight": (MLP, h),
        f"{layer}.mlp.up_proj.weight": (MLP, h),
        f"{layer}.mlp.down_proj.weight": (h, MLP),
        f"{layer}.post_attention_layernorm.weight": (h,),
        "norm.weight": (h,),
        "lm_head.weight": (drafted, h),
    }
    if drafted < VOCAB:
        shapes |= {"d2t": (drafted,), "t2d": (VOCAB,)}
    if stated.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (h,) for i in range(3)}
    return shapes, stated if "speculators_model_type" in stated else stated | {"num_key_value_heads": kv_heads}


_PART = AUTHORS | {"draft_vocab_size": DRAFTED}
_LLAMA3 = {"bias": False, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}

# Shapes and config, and the formats that go back to the same names.
PUBLISHED: dict[str, tuple[tuple[dict[str, tuple[int, ...]], dict[str, Any]], tuple[str, ...]]] = {
    "Vicuna-7B, 13B, Llama-2-7B, 13B, Mixtral": (eagle1(4), ("safeailab", "sglang")),
    "Vicuna-33B": (eagle1(1), ("safeailab", "sglang")),
    "Llama-2-70B": (eagle1(2, rms_norm_eps=1e-5), ("safeailab", "sglang")),
    "LLaMA3 and 3.1": (eagle1(1, **_LLAMA3), ("safeailab", "sglang")),
    "Qwen2-7B": (eagle1(4, qkv_bias=True), ("safeailab", "sglang")),
    "LLaMA3.1-8B, 3.3-70B, R1-Distill": (eagle3(1, _PART | {"rms_norm_eps": 1e-5}), ("safeailab", "sglang")),
    "Vicuna-13B of EAGLE-3": (
        eagle3(4, AUTHORS | {"draft_vocab_size": VOCAB}, drafted=VOCAB),
        ("safeailab", "sglang"),
    ),
    "Qwen3 by SpecForge": (eagle3(2, SPECFORGE | {"head_dim": 6}, head_dim=6), ("safeailab", "sglang")),
    "EAGLE-3.1 by SpecForge": (eagle3(2, SPECFORGE | {"fc_norm": True, "norm_output": True}), ("sglang",)),
    "NVIDIA's": (
        eagle3(
            2,
            _PART
            | {
                "eagle_config": {
                    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
                    "use_aux_hidden_state": True,
                    "use_input_layernorm_in_first_layer": True,
                    "use_last_layernorm": True,
                    "use_mtp_layernorm": False,
                    "next_layer_regular": True,
                    "parallel_draft_step": 1,
                    "parallel_draft_heads_num_layers": None,
                }
            },
        ),
        ("safeailab", "sglang"),
    ),
    "speculators": (eagle3(2, SPECULATORS, layer="layers.0"), ("speculators",)),
}


@functools.cache
def the_target() -> LM:
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    lm = target(vocab_size=VOCAB, hidden_size=WIDTH)
    return dataclasses.replace(lm, config=config(**sizes))


def stored(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    values = {name: draw.standard_normal(shape, np.float32) / 4 for name, shape in shapes.items()}
    if "d2t" in shapes:
        ids = np.sort(draw.permutation(VOCAB)[:DRAFTED])
        values |= {"d2t": ids - np.arange(DRAFTED), "t2d": np.isin(np.arange(VOCAB), ids)}
    return values


def published(folder: pathlib.Path, name: str) -> tuple[DraftHead, dict[str, np.ndarray]]:
    (shapes, stated), _ = PUBLISHED[name]
    values = stored(shapes)
    return load_head(write(folder, values, stated), the_target()), values


@pytest.mark.parametrize("name", PUBLISHED)
def test_in_and_out(tmp_path: pathlib.Path, name: str):
    (tmp_path / "published").mkdir()
    head, values = published(tmp_path / "published", name)
    if "d2t" in values:
        np.testing.assert_array_equal(head.vocabulary, values["d2t"] + np.arange(DRAFTED))
    values.pop("embed_tokens.weight", None)
    for format in PUBLISHED[name][1]:
        save_head(head, tmp_path / format, format=format)
        written = load_file(tmp_path / format / "model.safetensors")
        assert set(written) == set(values)
        for key, value in values.items():
            np.testing.assert_array_equal(written[key], value, strict=True)


@pytest.mark.parametrize("name", ["LLaMA3.1-8B, 3.3-70B, R1-Distill", "NVIDIA's", "speculators"])
def test_taps(tmp_path: pathlib.Path, name: str):
    """Of 8 layers the same three in each convention: by default, named one less than ours, and named as ours."""
    assert published(tmp_path, name)[0].taps == (2, 4, 5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_drafts(tmp_path: pathlib.Path, name: str):
    """One step over made-up features: a tree of known tokens, the draft vocabulary's alone."""
    head, _ = published(tmp_path, name)
    tree = _cycle(the_target(), Eagle(head=head, policy=DynamicTree(4, 1, 2)))
    tokens = np.asarray(tree.tokens)
    assert tokens.shape == (1, 4) and tokens[0, 0] == 5 and np.asarray(tree.valid).all()
    drafted = range(VOCAB) if head.vocabulary is None else np.asarray(head.vocabulary)
    assert set(tokens[0, 1:].tolist()) <= set(drafted)


@jax.jit
def _cycle(lm: LM, drafter: Eagle):
    """Two rows of text observed, then a proposal."""
    key = jax.random.key(0)
    rows = jax.random.normal(key, (1, 2, WIDTH))
    observed = CommittedRows(
        start=jnp.zeros(1, jnp.int32),
        count=jnp.full(1, 2, jnp.int32),
        tokens=jnp.asarray([[3, 4]], jnp.int32),
        following=jnp.asarray([[4, 5]], jnp.int32),
        hidden=rows,
        taps=(rows, -rows, 2 * rows)[: len(drafter.taps)],
    )
    state = drafter.observe(lm, drafter.init(lm, 1, 8), observed)
    tokens = jnp.asarray([[3, 4, 5, 0, 0, 0]], jnp.int32)
    view = View(tokens=tokens, length=jnp.full(1, 2, jnp.int32), noise=None, settings=settings_of(1))
    return drafter.propose(lm, state, view, sampling.GREEDY)[0]


def test_rope_of_published_configs(tmp_path: pathlib.Path):
    """No `rope_theta` means 10000, whatever the target's is."""
    head, _ = published(tmp_path, "LLaMA3.1-8B, 3.3-70B, R1-Distill")
    rope = head.config.layers.rope
    assert (rope.theta, rope.kind) == (10000.0, "default")
    head, _ = published(tmp_path, "Qwen3 by SpecForge")
    assert (head.config.layers.rope.theta, head.config.layers.head_dim) == (1000000.0, 6)
