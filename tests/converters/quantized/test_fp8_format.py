"""Weights of 8-bit floats: scales by tensor, output and block, under the names that three libraries use."""

import logging

import ml_dtypes
import numpy as np
import published
import pytest
import safetensors
from published import DOWN, Published

from eagle_jax.ops.quantized import QuantType

E4M3 = ml_dtypes.float8_e4m3fn
BLOCK = 64  # the 96 inputs of `down_proj` end with half a block, and 32 outputs are half of one
STATED = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}


def published_as(block=(BLOCK, BLOCK), name="weight_scale_inv", dtype=np.float32, squeeze=False, axes=2, more=()):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        codes = rng.standard_normal((out, size)).astype(E4M3)
        rows, columns = block[0] or out, block[1] or size
        scales = published.drawn_scales(rng, (-(-out // rows), -(-size // columns)), dtype)
        dense = np.empty((out, size), np.float32)
        for o, i in np.ndindex(out, size):
            dense[o, i] = np.float32(codes[o, i]) * np.float32(scales[o // rows, i // columns])
        stored = scales.reshape(-1) if squeeze else scales
        stored = scales.reshape(()) if axes == 0 else stored
        stored = scales[:, None, :, None] if axes == 4 else stored
        extra = {end: np.ones((), np.float32) for end in more}
        return Published({"weight": codes, name: stored} | extra, dense)

    return publish


def test_blocks_that_edges_cut(tmp_path):
    weights = published.check(published.write(tmp_path, published_as(), STATED))
    assert weights[DOWN].quant_type == QuantType(8, 32, "e4m3") and weights[DOWN].scales.shape == (64, 3)
    assert weights["model.layers.0.mlp.up_proj"].quant_type == QuantType(8, None, "e4m3")
    assert weights[DOWN].codes.dtype == E4M3


@pytest.mark.parametrize("dtype", [np.float32, "bfloat16", np.float16])
def test_dtypes_of_scales(tmp_path, dtype):
    down = published.check(published.write(tmp_path, published_as(dtype=np.dtype(dtype)), STATED))[DOWN]
    assert down.scales.dtype == (np.float16 if dtype is np.float16 else np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.float8_e8m0fnu])
def test_scales_that_are_powers_of_two(tmp_path, dtype):
    def publish(rng, out, size):
        codes = rng.standard_normal((out, size)).astype(E4M3)
        exponents = rng.integers(100, 140, (-(-out // BLOCK), -(-size // BLOCK))).astype(np.uint8)
        factors = np.asarray([[2.0 ** (int(e) - 127) for e in row] for row in exponents], np.float32)
        dense = codes.astype(np.float32) * np.kron(factors, np.ones((BLOCK, BLOCK), np.float32))[:out, :size]
        return Published({"weight": codes, "weight_scale_inv": exponents.view(dtype)}, dense)

    try:
        folder = published.write(tmp_path, publish, STATED | {"scale_fmt": "ue8m0"})
    except safetensors.SafetensorError as error:  # 0.5 does not write them
        pytest.skip(str(error))
    published.check(folder)


WHOLE = STATED | {"weight_block_size": None}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"]}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
TENSORS = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": GROUPS}


@pytest.mark.parametrize(
    ("stated", "options"),
    [
        (STATED | {"weight_block_size": None}, {"block": (0, 0), "axes": 0}),
        (
            STATED | {"weight_block_size": None, "activation_scheme": "static"},
            {"block": (0, 0), "more": ["input_scale"]},
        ),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, {"block": (1, 0), "name": "weight_scale"}),
        (MODELOPT, {"block": (0, 0), "axes": 0, "name": "weight_scale", "more": ["input_scale"]}),
        (MODELOPT, {"block": (1, 0), "squeeze": True, "name": "weight_scale"}),
        (TENSORS, {"block": (1, 0), "name": "weight_scale"}),
        (TENSORS, {"block": (0, 0), "squeeze": True, "name": "weight_scale", "dtype": np.dtype("bfloat16")}),
        (None, {"block": (1, 0), "name": "weight_scale"}),
    ],
    ids=["tensor", "static", "fbgemm", "modelopt", "modelopt by channel", "channel", "tensor of bfloat16", "unstated"],
)
def test_one_scale_for_a_tensor_or_an_output(tmp_path, stated, options):
    folder = published.write(tmp_path, published_as(**options), stated)
    assert published.check(folder)[DOWN].quant_type == QuantType(8, None, "e4m3")


def test_blocks_of_compressed_tensors_and_modelopt(tmp_path):
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [BLOCK, BLOCK]}
    stated = TENSORS | {"config_groups": {"group_0": {"weights": weights}}}
    folder = published.write(tmp_path / "tensors", published_as(name="weight_scale"), stated)
    assert published.check(folder)[DOWN].scales.shape == (64, 3)
    folder = published.write(
        tmp_path / "modelopt",
        published_as((128, 128), "weight_scale", axes=4),
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        intermediate_size=160,
    )
    assert published.check(folder)[DOWN].scales.shape == (64, 5)


def test_scales_of_8_bits_for_groups(tmp_path):
    """mxfp8-quantized."""

    def publish(rng, out, size):
        codes = rng.standard_normal((out, size)).astype(E4M3)
        exponents = rng.integers(100, 140, (out, size // 32)).astype(np.uint8)
        dense = np.empty((out, size), np.float32)
        for o, i in np.ndindex(out, size):
            dense[o, i] = np.float32(codes[o, i]) * np.float32(2.0 ** (int(exponents[o, i // 32]) - 127))
        return Published({"weight": codes, "weight_scale": exponents}, dense)

    folder = published.write(tmp_path, publish, TENSORS | {"format": "mxfp8-quantized"})
    assert published.check(folder)[DOWN].quant_type == QuantType(8, 32, "e4m3")


def test_activations_and_caches_that_are_not_rounded_are_told_once(tmp_path, caplog):
    options = {"block": (0, 0), "axes": 0, "name": "weight_scale", "more": ["input_scale"]}
    more = {f"model.layers.0.self_attn.{x}_proj.{x}_scale": np.ones((), np.float32) for x in "kv"}
    folder = published.write(tmp_path, published_as(**options), MODELOPT, more=more)
    caplog.set_level(logging.WARNING, "eagle_jax.converters")
    published.check(folder)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2, messages
    assert "EAGLE_JAX_ACTIVATIONS" in messages[0] and "quantized KV cache" in messages[1]
    caplog.clear()
    published.check(published.write(tmp_path / "quiet", published_as((1, 0), "weight_scale"), None))
    assert not caplog.records


def test_what_the_numbers_depend_on(tmp_path):
    folder = published.write(tmp_path, published_as(), STATED)
    assert published.depends_on(folder, "weight_scale_inv", lambda scales: scales[:, ::-1])


@pytest.mark.parametrize(
    ("stated", "change", "words"),
    [
        (STATED | {"fmt": "e5m2"}, {}, "fmt='e5m2' of FP8 is not read; expected 'e4m3'"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, {}, "quant_algo='W4A8_AWQ' of NVIDIA's ModelOpt is not read"),
        (STATED, {"weight_scale_inv": None}, "down_proj.weight and no .*weight_scale; copy or download"),
        (
            STATED,
            {"weight_scale_inv": np.ones((5, 7), np.float32)},
            r"scales \[5, 7\] for a weight \[64, 96\].*64 x 64",
        ),
        (STATED | {"ignored_layers": [DOWN]}, {}, "down_proj in ignored_layers, and .* quantized by FP8"),
        (STATED | {"modules_to_not_convert": ["model.layers.0.mlp"]}, {}, "_proj in modules_to_not_convert"),
        (MODELOPT | {"exclude_modules": ["*.down_proj"]}, {}, "down_proj in exclude_modules"),
        (TENSORS | {"ignore": ["re:.*down_proj$"]}, {}, "down_proj in ignore"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, stated, change, words):
    blocks = stated["quant_method"] == "fp8"
    publish = published_as() if blocks else published_as((1, 0), "weight_scale")
    folder = published.write(tmp_path, publish, stated)

    def spoil(tensors):
        for end, value in change.items():
            del tensors[f"{DOWN}.{end}"]
            tensors |= {} if value is None else {f"{DOWN}.{end}": value}

    published.changed(folder, spoil)
    with pytest.raises(ValueError, match=words):
        published.loaded(folder)
