"""Weights of every kind that files have: their values, products through XLA, layouts, embedding, experts, meshes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import ops
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import dense_params
from eagle_jax.ops.embed import embed
from eagle_jax.ops.experts import Stacks, apply_experts, gathered, grouped, in_blocks
from eagle_jax.ops.quantized import QuantArray, dense, quantize, rows_of
from eagle_jax.sharding import TARGET, parse, sharding_of
from eagle_jax.sharding.placing import place_all, placing
from eagle_jax.sharding.tracing import traced_over
from eagle_jax.testing import cpu_backend
from tests.models.quantized_targets import CONFIG, quantized_target
from tests.ops.quantized_weights import PUBLISHED, dense_by_hand, random_weight

KINDS = pytest.mark.parametrize("kind", PUBLISHED)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


@KINDS
def test_values_are_those_computed_one_by_one(kind):
    weight = random_weight(kind, 6, 256)
    np.testing.assert_array_equal(jax.jit(dense)(weight), dense_by_hand(weight))
    np.testing.assert_array_equal(rows_of(weight, jnp.asarray([4, 4, 0])), dense_by_hand(weight)[[4, 4, 0]])
    wrong = dataclasses.replace(weight, scales=weight.scales[::-1])
    assert not np.array_equal(dense(wrong), dense_by_hand(weight))


@KINDS
@pytest.mark.parametrize("transposed", [False, True], ids=["as stored", "transposed"])
def test_a_product_through_xla_is_that_of_the_values(kind, transposed, monkeypatch):
    monkeypatch.setenv(ops.VARIABLE, "xla")
    weight, x = random_weight(kind, 48, 256), normal(5, 256)
    if transposed:
        weight_held = ops.Transposed(jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), weight))
        jax.tree.map(np.testing.assert_array_equal, weight_held.unpack(), weight)
    else:
        weight_held = weight
    np.testing.assert_allclose(jax.jit(ops.matmul)(x, weight_held), x @ dense(weight).T, rtol=1e-4, atol=1e-4)


@pytest.mark.matrix
@KINDS
@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_a_target_of_such_weights_computes_what_its_floats_do(kind, backend, set_operations):
    """In the layout for decoding and through files' form again; rows are rounded to 16 bits by the CPU backend."""
    set_operations(EAGLE_JAX_OPS=backend, EAGLE_JAX_ACTIVATIONS="int16")
    stored = quantized_target(kind)
    floats = LM(params=dense_params(stored.params), config=CONFIG)
    laid = LM(params=layout.for_decoding(jax.tree.map(lambda x: x, stored.params), CONFIG.head_dim), config=CONFIG)
    held = [laid.params["layers_0"]["self_attn"]["qkv_proj"]["weight"], laid.params["embed_tokens"]["embedding"]]
    if backend == "cpu" and cpu_backend() is not None:
        assert all(isinstance(weight, ops.PackedWeight) for weight in held)
    back = laid.stored_params
    assert jax.tree.structure(back) == jax.tree.structure(stored.params)
    jax.tree.map(np.testing.assert_array_equal, back, stored.params)
    tokens = jnp.arange(9)[None] * 5 % CONFIG.vocab_size
    expected, found = floats(tokens)[1], jax.jit(LM.__call__)(laid, tokens)[1]
    np.testing.assert_allclose(found, expected, atol=2e-3 * float(jnp.abs(expected).max()))
    assert laid.table.shape == (CONFIG.vocab_size, CONFIG.hidden_size)


def test_projections_in_other_orders_stay_apart():
    stored = quantized_target("GPTQ")
    attention = stored.params["layers_0"]["self_attn"]
    attention["k_proj"]["weight"] = random_weight("GPTQ", *attention["k_proj"]["weight"].shape, seed=1, size=0.2)
    laid = layout.for_decoding(jax.tree.map(lambda x: x, stored.params), CONFIG.head_dim)
    assert "k_proj" in laid["layers_0"]["self_attn"] and "gate_up_proj" in laid["layers_0"]["mlp"]
    tokens = jnp.arange(9)[None]
    expected = LM(params=dense_params(stored.params), config=CONFIG)(tokens)[1]
    np.testing.assert_allclose(LM(params=laid, config=CONFIG)(tokens)[1], expected, rtol=0.1, atol=0.1)


@KINDS
def test_rows_of_a_quantized_table(kind):
    table, indices = random_weight(kind, 32, 128), jnp.asarray([[3, 31], [0, 99]])
    made = jax.jit(embed, static_argnums=2)(table, indices, jnp.dtype(jnp.float32))
    np.testing.assert_array_equal(made, dense_by_hand(table)[np.asarray([[3, 31], [0, 31]])])


@KINDS
def test_every_way_to_multiply_experts_understands_them(kind):
    stacks = Stacks(*(random_weight(kind, 4, 128, 128, seed=i, stacked=True) for i in range(3)))
    floats = jax.tree.map(dense, stacks, is_leaf=lambda leaf: isinstance(leaf, QuantArray))
    rows, expert = normal(6, 128) * 0.1, jnp.asarray([2, 0, 2, 2, 1, 0])
    expected = gathered(rows, expert, floats)
    close = 1e-3 * float(jnp.abs(expected).max())
    for way in (gathered, grouped, in_blocks, apply_experts):
        np.testing.assert_allclose(way(rows, expert, stacks), expected, atol=close, err_msg=way.__name__)


@pytest.mark.parametrize("kind", ["Q4_1", "IQ4_NL", "GPTQ", "FP8", "int8, asymmetric"])
@pytest.mark.parametrize("mesh", ["model:2", "model:4", "data:2,model:2"])
def test_a_target_over_a_mesh(kind, mesh):
    """Key/value heads are repeated where there are fewer than devices; groups that cannot be cut stay whole."""
    stored = quantized_target(kind)
    sharding = sharding_of(mesh, CONFIG)
    params = place_all(stored.params, placing(sharding, TARGET, CONFIG))
    widened = dataclasses.replace(CONFIG, num_key_value_heads=max(2, parse(mesh)["model"]))
    laid = LM(params=layout.for_decoding(params, CONFIG.head_dim, sharded=True), config=widened)
    tokens = jnp.arange(16).reshape(2, 8)
    with traced_over(sharding):
        found = jax.jit(LM.__call__)(laid, tokens)[1]
    expected = LM(params=dense_params(stored.params), config=CONFIG)(tokens)[1]
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(jnp.abs(expected).max()))


def test_what_is_read_from_files_only_is_not_made_here():
    with pytest.raises(
        ValueError, match="weights are not quantized to e4m3, a scale for each 128 inputs; expected int"
    ):
        quantize(normal(4, 128), PUBLISHED["FP8"][0], jnp.float32)
    made = quantize(normal(4, 128), PUBLISHED["Q4_K"][0], jnp.float32)
    assert isinstance(made, QuantArray) and made.minima is not None
    np.testing.assert_allclose(dense(made), normal(4, 128), atol=float(made.scales.max()) / 2 + 1e-6)
