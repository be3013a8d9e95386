"""Zero points in files, and what becomes of files that are quantized already."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from eagle_jax.converters import load_target, packed, quantize, save_target
from eagle_jax.models.quant import QUANT_TYPES, flat, quantize_params, scheme_of
from eagle_jax.ops import quantized
from eagle_jax.ops.quantized import QuantArray, QuantType, dense
from eagle_jax.testing import TINY, synthetic_pair
from tests.converters.folders import same_leaves

CONFIG = dataclasses.replace(
    TINY, vocab_size=64, hidden_size=128, head_dim=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=128
)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    """A folder of floats whose weights are not around 0."""
    root = tmp_path_factory.mktemp("floats")
    target = synthetic_pair(CONFIG)[0]
    shifted = jax.tree.map(lambda leaf: leaf + 0.02 if leaf.ndim == 2 else leaf, target.params)
    save_target(dataclasses.replace(target, params=shifted), root / "target")
    return root / "target"


def log_of(caplog) -> str:
    return " ".join(record.getMessage() for record in caplog.records if record.name == "eagle_jax.models")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, None])
def test_zero_points_are_integers_and_every_number_is_exact(bits, group):
    weight = jax.random.normal(jax.random.key(0), (8, 64)) + jnp.linspace(-3, 3, 8)[:, None]
    array = quantized.quantize(weight, QuantType(bits, group, has_minima=True), "float32")
    assert array.quant_type == QuantType(bits, group, has_minima=True)
    codes, scales = np.asarray(array.codes, np.float64), np.asarray(array.scales, np.float64)
    zeros = -np.asarray(array.minima, np.float64) / scales
    np.testing.assert_array_equal(zeros, np.rint(zeros))
    assert 0 <= zeros.min() and zeros.max() <= 2**bits - 1 and 0 <= codes.min() and codes.max() <= 2**bits - 1
    exact = (codes.reshape(*scales.shape, -1) - zeros[..., None]) * scales[..., None]
    np.testing.assert_array_equal(dense(array), exact.reshape(weight.shape))
    error = np.abs(exact.reshape(weight.shape) - weight)
    assert np.all(error.reshape(*scales.shape, -1) <= 0.51 * np.abs(scales)[..., None] * (1 + 2.0 ** (bits - 22)))


def test_zero_points_help_where_weights_are_not_around_zero():
    weight = jax.random.normal(jax.random.key(0), (8, 64)) + 2
    errors = [
        float(jnp.abs(dense(quantized.quantize(weight, QuantType(4, 32, has_minima=has), "float32")) - weight).mean())
        for has in (True, False)
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("scheme", ["int4-asym", "int4-128-asym", "int4-asym/int4-asym"])
def test_what_is_written_is_read_back_bit_for_bit(floats, tmp_path, scheme):
    loaded = load_target(floats, scheme=scheme_of(scheme))
    same_leaves(loaded.params, quantize_params(load_target(floats).params, scheme_of(scheme)))
    quantize(floats, tmp_path / "written", scheme)
    same_leaves(load_target(tmp_path / "written").params, loaded.params)
    save_target(loaded, tmp_path / "saved")
    same_leaves(load_target(tmp_path / "saved").params, loaded.params)
    stated = json.loads((tmp_path / "written" / "config.json").read_text())["quantization_config"]["config_groups"]
    assert [group["weights"]["symmetric"] for group in stated.values()].count(False) == 1


def test_words_and_zero_points_are_those_of_compressed_tensors(floats, tmp_path):
    """Both hold unsigned numbers; zero points lie along the outputs."""
    quantize(floats, tmp_path / "written", "int4-asym")
    tensors, name = load_file(tmp_path / "written" / "model.safetensors"), "model.layers.0.mlp.down_proj.weight"
    words, zeros = tensors[f"{name}_packed"], tensors[f"{name}_zero_point"]
    out, inputs = tensors[f"{name}_shape"]
    assert words.shape == (out, inputs // 8) and zeros.shape == (out // 8, inputs // 32)
    nibbles = [(words.view(np.uint32)[:, j // 8] >> 4 * (j % 8)) & 15 for j in range(inputs)]
    of_rows = [(zeros.view(np.uint32)[i // 8] >> 4 * (i % 8)) & 15 for i in range(out)]
    values = (np.stack(nibbles, 1).reshape(out, -1, 32) - np.stack(of_rows)[..., None].astype(np.float32)) * tensors[
        f"{name}_scale"
    ][..., None]
    expected = load_target(floats, scheme=scheme_of("int4-asym")).params["layers_0"]["mlp"]["down_proj"]["weight"]
    np.testing.assert_array_equal(values.reshape(out, inputs), dense(expected))
    shifted = np.stack([(zeros.view(np.uint32)[i // 8] >> 4 * (7 - i % 8)) & 15 for i in range(out)])
    assert not np.array_equal(shifted, np.stack(of_rows))


def test_minima_of_floats_are_not_written():
    weight = quantized.quantize(jnp.ones((8, 32)), QuantType(4, 32, has_minima=True), "float32")
    parts = packed.of_array(dataclasses.replace(weight, minima=weight.minima + 0.01))
    with pytest.raises(ValueError, match='w has minima that are no integer zero points, .*quantize="none"'):
        list(packed.tensors("w", parts, 4))


def bits(params) -> set[int]:
    return {leaf.bits for _, leaf in flat(params) if isinstance(leaf, QuantArray)}


def test_the_same_width_keeps_the_files_numbers(floats, tmp_path, caplog):
    quantize(floats, tmp_path / "int4", "int4")
    kept = load_target(tmp_path / "int4").params
    with caplog.at_level(logging.WARNING):
        same_leaves(load_target(tmp_path / "int4", scheme=scheme_of("int4-128-asym/int4")).params, kept)
    assert "holds weights of 4 bits already: they are kept, and quantize changes nothing" in log_of(caplog)
    quantize(tmp_path / "int4", tmp_path / "again", "int4-asym")
    same_leaves(load_file(tmp_path / "again" / "model.safetensors"), load_file(tmp_path / "int4" / "model.safetensors"))
    same_leaves(load_target(tmp_path / "again").params, kept)


def test_another_width_is_a_second_rounding_that_has_to_be_asked_for(floats, tmp_path, caplog):
    quantize(floats, tmp_path / "int4", "int4")
    for again in (
        lambda: load_target(tmp_path / "int4", scheme=scheme_of("int8")),
        lambda: quantize(tmp_path / "int4", tmp_path / "int8", "int8"),
    ):
        with pytest.raises(ValueError, match='to 4 bits already, and 8 were asked for.*"none".*"requantize:"'):
            again()
    expanded = load_target(tmp_path / "int4", scheme=scheme_of("none")).params
    assert not bits(expanded)
    same_leaves(
        expanded,
        jax.tree.map(dense, load_target(tmp_path / "int4").params, is_leaf=lambda x: isinstance(x, QuantArray)),
    )
    with caplog.at_level(logging.WARNING):
        again = load_target(tmp_path / "int4", scheme=scheme_of("requantize:int8")).params
    assert "quantized a second time" in log_of(caplog) and bits(again) == {8}
    same_leaves(again, quantize_params(expanded, scheme_of("int8")))
    quantize(tmp_path / "int4", tmp_path / "int8", "int8", requantize=True)
    same_leaves(load_target(tmp_path / "int8").params, again)
    half = load_target(tmp_path / "int4", scheme=scheme_of("requantize:int8/none")).params
    assert isinstance(half["lm_head"]["weight"], jax.Array)


@pytest.mark.parametrize("text", ["int3", "requantize:none", "int8/int8/int8", "requantize:", "asym", 4])
def test_what_is_no_scheme_is_refused(text):
    with pytest.raises(ValueError, match="is not known; expected"):
        scheme_of(text)


def test_none_is_floats_for_all():
    assert scheme_of("none") == scheme_of("none/none") and scheme_of("none").is_floats
    assert not scheme_of("none/int8").is_floats and set(QUANT_TYPES) >= {"int4-asym", "int4-128-asym"}
