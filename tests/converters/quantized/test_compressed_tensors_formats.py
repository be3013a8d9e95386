"""Integers of compressed-tensors: packed or in bytes, with zero points, with inputs sorted by group."""

import ml_dtypes
import numpy as np
import published
import pytest
from published import DOWN, Published

from eagle_jax.ops.quantized import QuantType

GROUP = 32


def stated(format="pack-quantized", **changes):
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"} | changes, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


def packed(bits=4, sym=True, shuffled=False, dtype=ml_dtypes.bfloat16, group=GROUP):
    """Numbers and zero points are stored with the middle added."""

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        each, middle = group or size, 2 ** (bits - 1)
        groups = np.arange(size) // each
        groups = np.random.default_rng(size).permutation(groups) if shuffled else groups
        codes = rng.integers(-middle, middle, (out, size))
        zeros = np.zeros((out, size // each), int) if sym else rng.integers(-middle, middle, (out, size // each))
        scales = published.drawn_scales(rng, zeros.shape, dtype)
        tensors = {
            "weight_packed": published.rows_of_words(codes + middle, bits),
            "weight_scale": scales,
            "weight_shape": np.asarray([out, size]),
        }
        if not sym:
            tensors["weight_zero_point"] = published.rows_of_words(zeros.T + middle, bits).T
        if shuffled:
            tensors["weight_g_idx"] = groups.astype(np.int32)
        return Published(tensors, published.by_group(codes, zeros, scales, groups))

    return publish


def octets(sym=True, group=None, axes=2, dtype=np.float32):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        each = group or size
        codes = rng.integers(-128, 128, (out, size))
        zeros = np.zeros((out, size // each), int) if sym else rng.integers(-128, 128, (out, size // each))
        scales = published.drawn_scales(rng, zeros.shape, dtype)
        dense = published.by_group(codes, zeros, scales, np.arange(size) // each)
        tensors = {"weight": codes.astype(np.int8), "weight_scale": scales if axes == 2 else scales[:, 0]}
        return Published(tensors | ({} if sym else {"weight_zero_point": zeros.astype(np.int8)}), dense)

    return publish


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "actorder"])
@pytest.mark.parametrize("sym", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights(tmp_path, bits, sym, shuffled):
    config = stated(num_bits=bits, symmetric=sym, actorder="group" if shuffled else None)
    down = published.check(published.write(tmp_path, packed(bits, sym, shuffled), config))[DOWN]
    assert down.quant_type == QuantType(bits, GROUP, has_minima=not sym, is_ordered=shuffled)


def test_packed_weights_with_one_scale_for_an_output_and_of_float16(tmp_path):
    config = stated(strategy="channel", symmetric=False)
    down = published.check(published.write(tmp_path, packed(4, False, group=None), config))[DOWN]
    assert down.quant_type == QuantType(4, None, has_minima=True)
    down = published.check(published.write(tmp_path / "half", packed(dtype=np.float16), stated()))[DOWN]
    assert down.scales.dtype == np.float16


@pytest.mark.parametrize(
    ("options", "quant_type"),
    [
        ({"dtype": np.float32}, QuantType(8)),
        ({"axes": 1}, QuantType(8)),
        ({"group": GROUP, "dtype": np.float32}, QuantType(8, GROUP)),
        ({"sym": False}, QuantType(8, has_minima=True)),
        ({"sym": False, "group": GROUP, "dtype": np.float16}, QuantType(8, GROUP, has_minima=True)),
    ],
    ids=["channel", "one axis", "group", "asymmetric", "asymmetric groups"],
)
def test_bytes(tmp_path, options, quant_type):
    publish = octets(**({"dtype": ml_dtypes.bfloat16} | options))
    folder = published.write(tmp_path, publish, stated("int-quantized", num_bits=8))
    assert published.check(folder)[DOWN].quant_type == quant_type


def test_zero_points_with_scales_of_float32_are_rounded_by_little(tmp_path):
    folder = published.write(tmp_path, octets(sym=False), stated("int-quantized", num_bits=8))
    for module, weight in published.weights_of(published.loaded(folder)):
        if module in folder.dense:
            scale = np.abs(np.asarray(weight.scales))
            error = np.abs(np.asarray(published.dense(weight)) - folder.dense[module])
            assert np.all(error <= 3 * 255 * scale * 2.0**-24)


@pytest.mark.parametrize(
    ("end", "change"),
    [
        ("weight_packed", lambda x: x ^ 0x11111111),
        ("weight_zero_point", lambda x: x ^ 0x11111111),
        ("weight_zero_point", lambda x: np.roll(x, 1, 1)),
        ("weight_g_idx", lambda x: np.roll(x, 1)),
        ("weight_scale", lambda x: x[::-1]),
    ],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, packed(4, False, True), stated(symmetric=False, actorder="group"))
    assert published.depends_on(folder, end, change)


def test_several_formats_in_one_folder(tmp_path):
    def publish(rng, out, size):
        return (octets(dtype=np.float16) if size == published.INTERMEDIATE else packed())(rng, out, size)

    weights = published.check(published.write(tmp_path, publish, stated("mixed-precision")))
    assert {weight.bits for weight in weights.values()} == {4, 8}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (stated("sparse-24-bitmask"), "format='sparse-24-bitmask' of compressed-tensors is not read"),
        (stated(num_bits=3), "num_bits=3 of compressed-tensors is not read; expected 4, 8"),
        (stated() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (stated() | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config .*inputs are not rotated"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, config, words):
    with pytest.raises(ValueError, match=words):
        published.loaded(published.write(tmp_path, packed(), config))


def test_groups_of_inputs_that_are_not_stated_are_in_order(tmp_path):
    folder = published.write(tmp_path, packed(), stated())
    published.changed(folder, lambda tensors: tensors.update({f"{DOWN}.weight_g_idx": np.full(96, -1, np.int32)}))
    assert not published.check(folder)[DOWN].quant_type.is_ordered


def test_a_folder_of_floats_whose_cache_alone_was_quantized(tmp_path, caplog):
    scheme = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}
    scales = {f"model.layers.0.self_attn.{x}_scale": np.ones(1, np.float32) for x in "kv"}
    every = [f"model.layers.0.{part}_proj" for part in ("mlp.gate", "mlp.up", "mlp.down")]
    every += [f"model.layers.0.self_attn.{x}_proj" for x in "qkvo"]
    floats = (*every, published.EMBEDDING, published.OUTPUT)
    folder = published.write(tmp_path, packed(), scheme, floats=floats, more=scales)
    assert folder.dense == {} and published.loaded(folder).dtype == np.float32
    assert ["quantized KV cache" in record.getMessage() for record in caplog.records] == [True]
