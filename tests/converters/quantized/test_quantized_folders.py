"""What holds for folders of every format: widths asked for, heads, conversion, description, saving."""

import contextlib
import dataclasses
import json
import logging
import pathlib

import numpy as np
import published
import pytest
import test_awq_format
import test_compressed_tensors_formats
import test_fp4_formats
import test_fp8_format
import test_gptq_format
import test_mlx_format
from published import DOWN
from safetensors.numpy import load_file

from eagle_jax.converters import convert, describe, load_head, load_target, quantize, save_head, save_target
from eagle_jax.converters.files import Weights
from eagle_jax.models.quant import dense_params, flat, scheme_of
from eagle_jax.ops.quantized import QuantArray, dense
from eagle_jax.testing import TINY, synthetic_head3, synthetic_medusa, synthetic_pair
from tests.converters.folders import same_leaves

CONFIG = dataclasses.replace(TINY, vocab_size=64, hidden_size=64, head_dim=16, intermediate_size=96)
AWQ = (test_awq_format.published_as(), test_awq_format.STATED)
SYMMETRIC = (test_awq_format.published_as(8), test_awq_format.STATED | {"zero_point": False})
FP8 = (test_fp8_format.published_as(), test_fp8_format.STATED)
FORMATS = {
    "AWQ": AWQ,
    "GPTQ": (test_gptq_format.published_as(shuffled=True), test_gptq_format.STATED | {"desc_act": True}),
    "FP8": FP8,
    "NVFP4": (test_fp4_formats.nvfp4("modelopt"), test_fp4_formats.MODELOPT),
    "compressed-tensors": (
        test_compressed_tensors_formats.packed(sym=False),
        test_compressed_tensors_formats.stated(symmetric=False),
    ),
    "MLX": (test_mlx_format.published_as(), test_mlx_format.STATED),
}
all_formats = pytest.mark.parametrize("name", FORMATS)


def key_of(name: str) -> str:
    return "quantization" if name == "MLX" else "quantization_config"


def requantized(folder: pathlib.Path, publish, stated, key: str = "quantization_config") -> dict[str, np.ndarray]:
    """Replaces the matrices of a folder of floats; returns what they stand for."""
    file = next(folder.glob("*.safetensors"))
    rng, tensors, weights = np.random.default_rng(0), {}, {}
    for name, value in load_file(file).items():
        if value.ndim == 2 and not name.endswith("embed_tokens.weight") and value.shape[1] % 32 == 0:
            module = name.removesuffix(".weight")
            made = publish(rng, *value.shape)
            weights[name] = made.dense
            tensors |= {f"{module}.{end}": part for end, part in made.tensors.items()}
        else:
            tensors[name] = value
    published.save(folder, tensors)
    if file.name != "model.safetensors":
        (folder / "model.safetensors").replace(file)
    entries = json.loads((folder / "config.json").read_text()) | {key: stated}
    (folder / "config.json").write_text(json.dumps(entries))
    return weights


@pytest.fixture(scope="module")
def pair():
    return synthetic_pair(CONFIG)


def test_the_width_that_files_have_changes_nothing(tmp_path, caplog):
    folder = published.write(tmp_path, *AWQ)
    caplog.set_level(logging.WARNING, "eagle_jax.models")
    same_leaves(published.loaded(folder, scheme=scheme_of("int4")).params, published.loaded(folder).params)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} holds weights of 4 bits already: they are kept, and quantize changes nothing"
    ]
    for asked in ("int8", "none/int8"):
        with pytest.raises(ValueError, match="quantized to 4 bits already, and 8 were asked for; leave quantize"):
            published.loaded(folder, scheme=scheme_of(asked))
    published.check(published.write(tmp_path / "fp8", *FP8), scheme=scheme_of("int8"))


@pytest.mark.matrix
@all_formats
def test_heads_are_read_as_targets_are(pair, tmp_path, name):
    heads = {"eagle": pair[1], "eagle3": synthetic_head3(pair[0], taps=(0, 1)), "medusa": synthetic_medusa(pair[0])}
    for kind, head in heads.items():
        save_head(head, tmp_path / kind)
        weights = requantized(tmp_path / kind, *FORMATS[name], key_of(name))
        loaded = load_head(tmp_path / kind, pair[0], scheme=scheme_of("int4"))
        found = [np.asarray(dense(leaf)) for _, leaf in flat(loaded.params) if isinstance(leaf, QuantArray)]
        assert len(found) == len(weights) > 0
        for matrix in weights.values():
            assert any(matrix.shape == one.shape and np.array_equal(matrix, one) for one in found), kind


def test_symmetric_integers_are_written_again(pair, tmp_path):
    save_head(pair[1], tmp_path / "head")
    requantized(tmp_path / "head", *SYMMETRIC)
    ours = dense_params(load_head(tmp_path / "head", pair[0], "float32").params)
    save_target(pair[0], tmp_path / "target")
    convert(tmp_path / "head", tmp_path / "speculators", "speculators", target=tmp_path / "target")
    same_leaves(dense_params(load_head(tmp_path / "speculators", pair[0], "float32").params), ours)
    folder = published.write(tmp_path / "awq", *SYMMETRIC)
    save_target(published.loaded(folder), tmp_path / "saved")
    published.check(published.Folder(tmp_path / "saved", folder.dense))


@all_formats
def test_what_packed_integers_say_is_written_and_the_rest_is_refused(pair, tmp_path, name):
    """Integers with integer zero points in the model's order are; tables, minima of floats and orders are not."""
    folder = published.write(tmp_path / "quantized", *FORMATS[name], key=key_of(name))
    model, is_written = published.loaded(folder), name in ("AWQ", "compressed-tensors")
    save_head(pair[1], tmp_path / "head")
    requantized(tmp_path / "head", *FORMATS[name], key_of(name))
    save_target(pair[0], tmp_path / "target")
    refused = "compressed-tensors do not have; keep the files"
    for write in (
        lambda: save_target(model, tmp_path / "saved"),
        lambda: convert(tmp_path / "head", tmp_path / "speculators", "speculators", target=tmp_path / "target"),
    ):
        with contextlib.nullcontext() if is_written else pytest.raises(ValueError, match=refused):
            write()
    if is_written:
        published.check(published.Folder(tmp_path / "saved", folder.dense))


@all_formats
def test_folders_are_quantized_a_second_time_where_that_is_asked_for(tmp_path, name):
    folder, again = published.write(tmp_path / "quantized", *FORMATS[name], key=key_of(name)), tmp_path / "again"
    other = "int4" if name == "FP8" else "int8"
    with pytest.raises(ValueError, match="already, and . were asked for; leave quantize out"):
        quantize(folder.path, again, other)
    assert not again.exists()
    quantize(folder.path, again, other, requantize=True)
    expected = load_target(folder.path, scheme=scheme_of(f"requantize:{other}"))  # in the files' own dtype
    same_leaves(load_target(again).params, dense_tables(expected.params))


def dense_tables(params):
    """Tables of embeddings are written in floats."""
    return params | {"embed_tokens": dense_params(params["embed_tokens"])}


@all_formats
def test_folders_are_described_without_reading_a_weight(tmp_path, name, monkeypatch):
    folder = published.write(tmp_path, *FORMATS[name], key=key_of(name))
    described = describe(tmp_path)
    dtype = {"FP8": "float8_e4m3fn", "NVFP4": "float4_e2m1fn"}.get(name, "int4")
    assert described.problem is None and described.kind == "target"
    assert described.dtypes[dtype] == sum(weight.size for weight in folder.dense.values())
    assert described.dtypes.keys() == {dtype, "float16"}


def test_what_is_not_read_is_described_with_the_reason(tmp_path):
    published.write(tmp_path, AWQ[0], AWQ[1] | {"version": "gemv"})
    assert "version='gemv' of AWQ is not read" in (describe(tmp_path).problem or "")


def test_a_quantized_weight_can_be_taken_as_floats(tmp_path):
    for i, (publish, stated) in enumerate(FORMATS.values()):
        folder = published.write(
            tmp_path / str(i), publish, stated, key="quantization_config" if i < 5 else "quantization"
        )
        np.testing.assert_array_equal(Weights(folder.path).take(f"{DOWN}.weight"), folder.dense[DOWN])


@pytest.mark.parity
@all_formats
def test_files_of_pytorch_are_read_alike(tmp_path, name):
    torch = pytest.importorskip("torch")
    from test_against_libraries import as_torch

    folder = published.write(tmp_path, *FORMATS[name], key=key_of(name))
    tensors = {key: as_torch(value) for key, value in published.tensors_of(folder).items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    published.check(folder)


def test_dtypes_are_those_of_what_stays_in_floats(tmp_path):
    published.write(tmp_path, *FP8)
    assert load_target(tmp_path).dtype == np.float16
