"""Weights rounded to 8 or 4 bits: how far off they are, and that every product of the models understands them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import Experts
from eagle_jax.models import layout
from eagle_jax.models.layers import Linear
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme, flat, is_quantized, quantize_params, scheme_of, schemes_of
from eagle_jax.ops import Transposed, matmul
from eagle_jax.ops.experts import Stacks, apply_experts, gathered, grouped, in_blocks
from eagle_jax.ops.quantized import QuantArray, QuantType, dense, quantize
from eagle_jax.testing import TINY, synthetic_pair

INT8, INT4 = QuantType(8), QuantType(4, 32)
CONFIG = dataclasses.replace(TINY, num_hidden_layers=1, intermediate_size=64)


def weight(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def rounded_by_hand(values: np.ndarray, quant_type: QuantType) -> np.ndarray:
    """The same numbers as the reference rounds them: one group at a time, in plain numpy."""
    lowest, out = -(2 ** (quant_type.bits - 1)), np.empty_like(values)
    step = quant_type.group or values.shape[1]
    for row in range(values.shape[0]):
        for start in range(0, values.shape[1], step):
            group = values[row, start : start + step]
            scale = np.float32(group[np.argmax(np.abs(group))] / lowest) or np.float32(1)
            out[row, start : start + step] = np.clip(np.rint(group / scale), lowest, -lowest - 1) * scale
    return out


@pytest.mark.parametrize("quant_type", [INT8, INT4, QuantType(4, 16), QuantType(4)])
def test_it_rounds_to_the_nearest_level_of_each_group(quant_type):
    values = np.asarray(weight(5, 64)).copy()
    values[1] = 0.0  # a row of zeros stays one
    values[2, 3] = -values[2].max() * 2  # the largest is negative
    made = quantize(jnp.asarray(values), quant_type, jnp.float32)
    assert made.shape == (5, 64) and made.scales.shape == (5, quant_type.groups(64))
    np.testing.assert_allclose(dense(made), rounded_by_hand(values, quant_type), rtol=1e-6)
    groups = np.abs(values).reshape(5, quant_type.groups(64), -1)
    largest = groups.argmax(-1)[..., None]
    exact = np.abs(np.asarray(dense(made))).reshape(groups.shape)
    np.testing.assert_allclose(np.take_along_axis(exact, largest, -1), np.take_along_axis(groups, largest, -1), 1e-6)


def test_the_error_is_what_so_many_bits_allow():
    values = weight(64, 256)
    for quant_type, allowed in ((INT8, 0.009), (INT4, 0.10), (QuantType(4, 128), 0.12)):
        off = dense(quantize(values, quant_type, jnp.float32)) - values
        assert float(jnp.linalg.norm(off) / jnp.linalg.norm(values)) < allowed


@pytest.mark.parametrize("quant_type", [INT8, INT4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows, out", [(1, 300), (3, 128), (2, 20)])
def test_a_product_is_that_of_the_numbers_it_stands_for(quant_type, dtype, rows, out):
    """Also in blocks of columns, with a rest and without, and by both axes."""
    x, matrix = weight(rows, 64, seed=1), quantize(weight(out, 64), quant_type, dtype)
    wanted = x.astype(dtype).astype(jnp.float32) @ dense(dataclasses.replace(matrix, dtype=np.dtype("float32"))).T
    turned = jax.tree.map(lambda part: part.T, matrix)
    made = jax.jit(lambda x: (matmul(x, matrix), matmul(x, Transposed(turned))))(x)
    for product in made:
        assert product.dtype == jnp.float32
        tolerance = 1e-5 if dtype == jnp.float32 or quant_type is INT8 else 2e-2
        np.testing.assert_allclose(product, wanted, rtol=tolerance, atol=tolerance * 8)


def test_a_block_at_a_time_is_all_that_becomes_floats():
    """The compiled loop of two products, of which XLA would otherwise take both matrices' floats out of the loop."""
    matrices = [quantize(weight(1024, 256, seed=i), INT8, jnp.float32) for i in range(2)]
    turned = [jax.tree.map(lambda part: part.T, matrix) for matrix in matrices]

    def loop(matrices, x):
        def once(_, x):
            for matrix in matrices:
                x = x + matmul(x, Transposed(matrix))[:, :256]
            return x

        return jax.lax.fori_loop(0, 5, once, x)

    options = {"xla_backend_optimization_level": 2}
    memory = jax.jit(loop).lower(turned, jnp.ones((2, 256))).compile(options).memory_analysis()
    assert memory.temp_size_in_bytes < matrices[0].size * 4
    wanted = jax.jit(loop)([dense(matrix) for matrix in turned], jnp.ones((2, 256)))
    np.testing.assert_allclose(jax.jit(loop)(turned, jnp.ones((2, 256))), wanted, rtol=1e-3, atol=1e-2)


def test_decoding_layout_and_back_bit_for_bit():
    params = quantize_params(LM.init(CONFIG, jax.random.key(0)).params, scheme_of("int4"))
    kept = jax.tree.map(lambda leaf: leaf, params)
    laid = layout.for_decoding(params, CONFIG.head_dim)
    assert "qkv_proj" in laid["layers_0"]["self_attn"] and "gate_up_proj" in laid["layers_0"]["mlp"]
    back = layout.for_files(laid)
    assert jax.tree.structure(back) == jax.tree.structure(kept)
    jax.tree.map(np.testing.assert_array_equal, back, kept)


@pytest.mark.parametrize("text, kind", [("int8", QuantArray), ("int4", Transposed)])
def test_accelerators_have_groups_of_inputs_first(monkeypatch, text, kind):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    params = jax.eval_shape(lambda: quantize_params(LM.init(CONFIG, jax.random.key(0)).params, scheme_of(text)))
    laid = jax.eval_shape(lambda: layout.for_decoding(jax.tree.map(jnp.zeros_like, params), CONFIG.head_dim))
    down = laid["layers_0"]["mlp"]["down_proj"]
    held = down["weight"]
    assert isinstance(held, kind)
    codes = held.data.codes if kind is Transposed else held.codes
    assert codes.dtype == {"int8": jnp.int8, "int4": jnp.int4}[text]


def test_groups_stay_behind_on_gpus_with_scales_of_the_products_dtype(monkeypatch):
    matrix = jax.random.normal(jax.random.key(0), (64, 96)).astype(jnp.bfloat16)
    rounded = quantize(matrix, QuantType(4, 32), jnp.bfloat16)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    laid = layout.for_decoding({"fc": {"weight": rounded}}, 32)["fc"]["weight"]
    assert laid.shape == (64, 96) and laid.scales.dtype == jnp.bfloat16
    np.testing.assert_allclose(*(dense(one).astype(jnp.float32) for one in (laid, rounded)), rtol=2**-6)


def test_a_head_trimmed_to_a_rounded_target_has_rows_of_floats():
    target, head = synthetic_pair(CONFIG)
    rounded = dataclasses.replace(target, params=quantize_params(target.params, scheme_of("none/int8")))
    rows = head.trimmed(rounded, np.arange(5)).params["lm_head"]["weight"]
    np.testing.assert_array_equal(rows, dense(rounded.params["lm_head"]["weight"])[:5])


def test_projections_that_are_rounded_differently_stay_apart():
    params = LM.init(CONFIG, jax.random.key(0)).params
    target = LM(params=jax.tree.map(lambda leaf: leaf, params), config=CONFIG)
    attention = params["layers_0"]["self_attn"]
    attention["k_proj"]["weight"] = quantize(attention["k_proj"]["weight"], INT8, jnp.float32)
    laid = layout.for_decoding(params, CONFIG.head_dim)
    assert "k_proj" in laid["layers_0"]["self_attn"]
    tokens = jnp.arange(4)[None]
    near, exact = LM(params=laid, config=CONFIG)(tokens)[1], target(tokens)[1]
    assert 0 < float(jnp.max(jnp.abs(near - exact))) < 0.1 * float(jnp.max(jnp.abs(exact)))


@pytest.mark.parametrize("text, bits", [("int8", {8}), ("int4/none", {4}), ("int4", {4, 8}), ("none/int4", {4})])
def test_matrices_are_rounded_and_nothing_else(text, bits):
    config = dataclasses.replace(
        CONFIG, experts=Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)
    )
    params = quantize_params(LM.init(config, jax.random.key(0)).params, scheme_of(text))
    rounded = {path: leaf.bits for path, leaf in flat(params) if isinstance(leaf, QuantArray)}
    assert set(rounded.values()) == bits and is_quantized(params)
    assert rounded.get("lm_head/weight") == {"int8": 8, "int4/none": None, "int4": 8, "none/int4": 4}[text]
    if text != "none/int4":
        assert {"layers_0/mlp/experts/down", "layers_0/self_attn/o_proj/weight"} <= set(rounded)
    assert not any(path.endswith(("embedding", "scale", "mlp/gate/weight")) for path in rounded)


@pytest.mark.parametrize("quant_type", [INT8, INT4])
def test_every_way_to_multiply_experts_understands_them(quant_type):
    gate, up, down = (quantize(weight(4, 32, 32, seed=i), quant_type, jnp.float32) for i in range(3))
    stacks, floats = Stacks(gate, up, down), Stacks(dense(gate), dense(up), dense(down))
    rows, expert = weight(6, 32), jnp.asarray([2, 0, 2, 2, 1, 0])
    wanted = gathered(rows, expert, floats)
    for way in (gathered, grouped, in_blocks, apply_experts):
        np.testing.assert_allclose(way(rows, expert, stacks), wanted, rtol=1e-4, atol=1e-3, err_msg=way.__name__)


def test_a_linear_map_with_a_bias():
    params = {"weight": quantize(weight(12, 32), INT8, jnp.bfloat16), "bias": jnp.ones(12, jnp.bfloat16)}
    made = Linear(12, use_bias=True, dtype=jnp.bfloat16).apply({"params": params}, jnp.zeros((2, 32), jnp.bfloat16))
    assert made.dtype == jnp.bfloat16 and float(made[0, 0]) == 1.0


def test_drafting_models_may_have_a_scheme_of_their_own():
    assert schemes_of("int8") == (scheme_of("int8"),) * 2 and schemes_of(None) == (None, None)
    assert schemes_of("draft:int4/none") == (None, scheme_of("int4/none"))
    with pytest.raises(ValueError, match="quantize='int3' is not known"):
        schemes_of("draft:int3")
    with pytest.raises(ValueError, match="quantize='draft:int8' is not known"):  # where there is no draft to speak of
        scheme_of("draft:int8")


@pytest.mark.parametrize("text", ["int3", "int4-", "int8/", "requantize:none", 8, "int8/int4/int4", ""])
def test_what_is_no_scheme_is_refused(text):
    with pytest.raises(ValueError, match="quantize=.*expected"):
        scheme_of(text)


def test_groups_that_do_not_divide_are_refused_by_name():
    params = {"mlp": {"down_proj": {"weight": jax.ShapeDtypeStruct((8, 48), jnp.float32)}}}
    with pytest.raises(ValueError, match="groups of 32 do not divide the 48 inputs of mlp/down_proj/weight; quantize"):
        scheme_of("int4").check(params)
    Scheme(QuantType(8), None).check(params)
