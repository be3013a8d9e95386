"""Weights of 4-bit floats: NVFP4 of two libraries, MXFP4 of compressed-tensors and of gpt-oss."""

import json

import ml_dtypes
import numpy as np
import published
import pytest
from published import DOWN, Published

from eagle_jax.converters.files import Weights
from eagle_jax.converters.quantized import unpacking
from eagle_jax.ops.quantized import QuantType

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def value_of(code: int) -> np.float32:
    return np.float32(MAGNITUDES[code & 7] * (-1 if code & 8 else 1))


def octets_of(codes: np.ndarray) -> np.ndarray:
    made = np.zeros((*codes.shape[:-1], codes.shape[-1] // 2), np.uint8)
    for index in np.ndindex(*codes.shape):
        made[*index[:-1], index[-1] // 2] |= codes[index] << (4 * (index[-1] % 2))
    return made


def nvfp4(library: str):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        codes = rng.integers(0, 16, (out, size))
        scales = rng.uniform(1, 400, (out, size // 16)).astype(ml_dtypes.float8_e4m3fn)
        whole = np.float32(rng.uniform(100, 3000))
        factor = {"compressed": np.float32(1) * whole, "modelopt": np.float32(1) / whole}[library]
        dense = np.empty((out, size), np.float32)
        for o, i in np.ndindex(out, size):
            scale = np.float32(scales[o, i // 16])
            dense[o, i] = value_of(codes[o, i]) * (scale / factor if library == "compressed" else scale * factor)
        octets = octets_of(codes)
        if library == "compressed":
            tensors = {"weight_packed": octets, "weight_scale": scales, "weight_global_scale": factor.reshape(1)}
        else:
            tensors = {"weight": octets, "weight_scale": scales, "weight_scale_2": np.asarray(factor)}
        return Published(tensors, dense)

    return publish


def mxfp4(rng: np.random.Generator, out: int, size: int) -> Published:
    codes = rng.integers(0, 16, (out, size))
    exponents = rng.integers(110, 130, (out, size // 32)).astype(np.uint8)
    dense = np.empty((out, size), np.float32)
    for o, i in np.ndindex(out, size):
        dense[o, i] = value_of(codes[o, i]) * np.float32(2.0 ** (int(exponents[o, i // 32]) - 127))
    return Published({"weight_packed": octets_of(codes), "weight_scale": exponents}, dense)


@pytest.mark.parametrize(
    ("publish", "stated", "group"),
    [
        (nvfp4("compressed"), COMPRESSED, 16),
        (nvfp4("modelopt"), MODELOPT, 16),
        (mxfp4, COMPRESSED | {"format": "mxfp4-pack-quantized"}, 32),
        (mxfp4, None, 32),
    ],
    ids=["NVFP4", "NVFP4 of ModelOpt", "MXFP4", "MXFP4 unstated"],
)
def test_weights_are_those_of_the_rule(tmp_path, publish, stated, group):
    folder = published.write(tmp_path, publish, stated)
    down = published.check(folder)[DOWN]
    assert down.quant_type == QuantType(4, group, "e2m1")
    assert down.codes.dtype == QuantType(4, group, "e2m1").code_dtype


@pytest.mark.parametrize(
    ("end", "change"),
    [
        ("weight", lambda x: x >> 4 | x << 4),  # halves the other way round
        ("weight", lambda x: x ^ 0x88),  # signs
        ("weight_scale", lambda x: x[::-1]),
        ("weight_scale_2", lambda x: 1 / x),
    ],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, nvfp4("modelopt"), MODELOPT)
    assert published.depends_on(folder, end, change)


def test_what_does_not_fit_is_named(tmp_path):
    folder = published.write(tmp_path, nvfp4("modelopt"), MODELOPT)
    published.changed(folder, lambda tensors: tensors.pop(f"{DOWN}.weight_scale_2"))
    with pytest.raises(ValueError, match=f"has {DOWN}.weight and no {DOWN}.weight_scale_2"):
        published.loaded(folder)


def test_a_scale_that_is_no_number_is_found(tmp_path):
    folder = published.write(tmp_path, mxfp4, None)
    published.changed(folder, lambda tensors: tensors[f"{DOWN}.weight_scale"].fill(255))
    with pytest.raises(ValueError, match=f"{DOWN}.weight .*NaN or infinite"):
        published.loaded(folder)


def test_experts_of_gpt_oss(tmp_path):
    """Two experts with 6 outputs and 64 inputs; the tensors alone, since the family is not loaded."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (2, 6, 64))
    exponents = rng.integers(110, 130, (2, 6, 2)).astype(np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    blocks = octets_of(codes).reshape(2, 6, 2, 16)
    bias = np.ones((2, 6), np.float32)
    published.save(tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": exponents, f"{name}_bias": bias})
    published.state(tmp_path, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    weights = Weights(tmp_path)
    assert weights.info.keys() == {name, f"{name}_bias"} and weights.info[name].shape == (2, 6, 64)
    assert weights.info[name].quant_type == QuantType(4, 32, "e2m1")
    expected = np.empty((2, 6, 64), np.float32)
    for e, o, i in np.ndindex(2, 6, 64):
        expected[e, o, i] = value_of(codes[e, o, i]) * np.float32(2.0 ** (int(exponents[e, o, i // 32]) - 127))
    np.testing.assert_array_equal(unpacking.dense(weights.take_quantized(name), "e2m1"), expected)
    published.save(tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": exponents[:, :3]})
    with pytest.raises(ValueError, match=r"gate_up_proj_scales .*\[2, 3, 2\]; expected one scale for each block"):
        Weights(tmp_path)


def test_a_folder_of_the_old_exporter_states_it_in_a_file_of_its_own(tmp_path, caplog):
    folder = published.write(tmp_path, nvfp4("modelopt"), None)
    stated = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    side = tmp_path / "hf_quant_config.json"
    side.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": stated}))
    published.check(folder)
    assert len(caplog.records) == 2
    side.write_text(json.dumps({"quantization": stated | {"exclude_modules": ["lm_head", "model.layers.0.mlp*"]}}))
    with pytest.raises(ValueError, match="hf_quant_config.json has model.layers.0.mlp.*_proj in exclude_modules"):
        published.loaded(folder)
