"""The decoding layout is the same model: same passes, and the same bits when laid out as stored again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import ops
from eagle_jax.configs.heads import EagleConfig
from eagle_jax.models import layout
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.ops import packing
from eagle_jax.testing import TINY, cpu_backend

BIASED = dataclasses.replace(TINY, attention_bias=True, mlp_bias=True)
TIED = dataclasses.replace(TINY, tie_word_embeddings=True)


def copied(params):
    """Another tree of the same arrays: `for_decoding` empties the one it is given."""
    return jax.tree.map(lambda leaf: leaf, params)


def randomised(params, key):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    values = [jax.random.normal(k, leaf.shape, leaf.dtype) * 0.3 for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, values)


@pytest.fixture(params=["cpu", "xla"])
def packs(request, monkeypatch) -> bool:
    """Whether the CPU backend is used, which packs weights."""
    monkeypatch.setenv(ops.VARIABLE, request.param)
    return request.param == "cpu" and cpu_backend() is not None


@pytest.mark.parametrize("config", [TINY, BIASED, TIED], ids=["plain", "biases", "tied"])
def test_a_target_computes_the_same_in_both_layouts(config, packs):
    stored = LM(params=randomised(LM.init(config, jax.random.key(0)).params, jax.random.key(1)), config=config)
    laid = LM(params=layout.for_decoding(copied(stored.params), config.head_dim), config=config)
    assert "qkv_proj" in laid.params["layers_0"]["self_attn"]
    gate_up, table = laid.params["layers_0"]["mlp"]["gate_up_proj"]["weight"], laid.params["embed_tokens"]["embedding"]
    assert isinstance(gate_up, ops.PackedWeight if packs else ops.Transposed)
    assert gate_up.shape == (2, config.intermediate_size, config.hidden_size)
    assert isinstance(table, ops.PackedWeight) == (packs and config.tie_word_embeddings)
    tokens = jnp.arange(10, dtype=jnp.int32)[None] % config.vocab_size
    for one, other in zip(*(jax.jit(LM.__call__)(target, tokens) for target in (stored, laid)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype, close", [(jnp.bfloat16, 2e-2), (jnp.float32, 1e-4)], ids=["bfloat16", "float32"])
def test_unpacked_wide_matrices_stay_as_stored(dtype, close, monkeypatch):
    monkeypatch.setenv(ops.VARIABLE, "xla")
    config = dataclasses.replace(TINY, intermediate_size=packing.MIN_INPUTS_AS_STORED, num_hidden_layers=1)
    stored = LM.init(config, jax.random.key(0), dtype)
    laid = LM(params=layout.for_decoding(copied(stored.params), config.head_dim), config=config)
    mlp = laid.params["layers_0"]["mlp"]
    assert isinstance(mlp["down_proj"]["weight"], jax.Array)
    assert isinstance(mlp["gate_up_proj"]["weight"], ops.Transposed)
    tokens = jnp.arange(10, dtype=jnp.int32)[None] % config.vocab_size
    for one, other in zip(*(jax.jit(LM.__call__)(target, tokens) for target in (stored, laid)), strict=True):
        np.testing.assert_allclose(one, other, rtol=close, atol=close)


def test_merged_matrices_that_stay_as_stored_are_the_same_model(monkeypatch):
    monkeypatch.setattr(packing, "MIN_INPUTS_AS_STORED", 1)
    monkeypatch.setenv(ops.VARIABLE, "xla")
    params = randomised(LM.init(BIASED, jax.random.key(0), jnp.bfloat16).params, jax.random.key(1))
    laid = layout.for_decoding(copied(params), BIASED.head_dim)
    assert laid["layers_0"]["self_attn"]["qkv_proj"]["weight"].ndim == 4
    assert laid["layers_0"]["mlp"]["gate_up_proj"]["weight"].ndim == 3
    tokens = jnp.arange(10, dtype=jnp.int32)[None] % BIASED.vocab_size
    models = (LM(params=either, config=BIASED) for either in (params, laid))
    for one, other in zip(*(jax.jit(LM.__call__)(model, tokens) for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)
    back = layout.for_files(laid)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_a_head_computes_the_same_in_both_layouts():
    config = EagleConfig(layers=dataclasses.replace(TINY, num_hidden_layers=2, qkv_bias=True), fc_bias=True)
    stored = Head(params=randomised(Head.init(config, jax.random.key(0)).params, jax.random.key(1)), config=config)
    laid = Head(params=layout.for_decoding(copied(stored.params), TINY.head_dim), config=config)
    assert laid.dtype == stored.dtype
    rows = jax.random.normal(jax.random.key(2), (1, 7, TINY.hidden_size))
    one, other = (jax.jit(Head.causal)(head, rows, rows[:, ::-1]) for head in (stored, laid))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [TINY, BIASED, TIED], ids=["plain", "biases", "tied"])
def test_the_way_back_is_exact(config, packs):
    params = randomised(LM.init(config, jax.random.key(0)).params, jax.random.key(1))
    back = layout.for_files(layout.for_decoding(copied(params), config.head_dim))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    jax.tree.map(np.testing.assert_array_equal, layout.for_files(params), params)


def test_no_weight_is_held_twice():
    params = LM.init(TINY, jax.random.key(0)).params
    layout.for_decoding(params, TINY.head_dim)
    assert params == {}


def test_a_table_of_a_part_is_no_output_matrix():
    """Gemma 4's embeddings by layer: nothing multiplies by them."""
    table = jnp.ones((64, 32), jnp.bfloat16)
    laid = layout.for_decoding({"layer_inputs": {"embed_tokens": {"embedding": table}}}, 16)
    assert isinstance(laid["layer_inputs"]["embed_tokens"]["embedding"], jax.Array)
