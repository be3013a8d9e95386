"""Reading tensors from model folders."""

import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import pytest
from folders import refused
from safetensors.numpy import save_file

from eagle_jax.converters.files import Weights, read_json, weight_files
from eagle_jax.converters.tensor_file import TensorInfo

VALUES = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=ml_dtypes.bfloat16),
    "c": np.arange(2, dtype=np.float16),
}


def _shards(folder: pathlib.Path) -> pathlib.Path:
    """a and b in one file, c in another; returns the index."""
    save_file({name: VALUES[name] for name in "ab"}, folder / "model-1.safetensors")
    save_file({"c": VALUES["c"]}, folder / "model-2.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}})
    )
    return index


def _assert_values(weights: Weights) -> None:
    assert set(weights.info) == set(VALUES)
    for name, value in VALUES.items():
        assert (weights.info[name].shape, weights.info[name].dtype) == (value.shape, value.dtype.name)
        taken = weights.take(name)
        assert taken.dtype == value.dtype
        np.testing.assert_array_equal(taken, value)


def test_one_file(tmp_path: pathlib.Path):
    save_file(VALUES, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    assert weights.info["a"] == TensorInfo((2, 3), "float32", tmp_path / "model.safetensors")
    _assert_values(weights)


def test_shards(tmp_path: pathlib.Path):
    _shards(tmp_path)
    assert [path.name for path in weight_files(tmp_path)] == ["model-1.safetensors", "model-2.safetensors"]
    _assert_values(Weights(tmp_path))


def test_safetensors_go_before_pickles(tmp_path: pathlib.Path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    save_file(VALUES, tmp_path / "model.safetensors")
    _assert_values(Weights(tmp_path))


@pytest.mark.parity
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 2020"])
def test_pickle(tmp_path: pathlib.Path, zipped: bool):
    torch = pytest.importorskip("torch")
    torch.save(_torch_values(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    _assert_values(Weights(tmp_path))


@pytest.mark.parity
def test_pickle_shards(tmp_path: pathlib.Path):
    torch = pytest.importorskip("torch")
    weight_map = {}
    for name, value in _torch_values().items():
        torch.save({name: value}, tmp_path / f"pytorch_model-{name}.bin")
        weight_map[name] = f"pytorch_model-{name}.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _assert_values(Weights(tmp_path))


def _torch_values():
    import torch

    return {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.arange(4, dtype=torch.bfloat16),
        "c": torch.arange(2, dtype=torch.float16),
    }


def test_no_folder(tmp_path: pathlib.Path):
    with refused(FileNotFoundError, "nothing", "no model folder"):
        Weights(tmp_path / "nothing")


def test_no_weights(tmp_path: pathlib.Path):
    with refused(FileNotFoundError, "holds no weights", "model.safetensors", "pytorch_model.bin"):
        Weights(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 60, -1], ids=["empty", "size cut", "header cut", "last byte lost"])
def test_truncated_safetensors(tmp_path: pathlib.Path, keep: int):
    path = tmp_path / "model.safetensors"
    save_file(VALUES, path)
    path.write_bytes(path.read_bytes()[:keep])
    with refused(ValueError, str(path), "not a whole safetensors file"):
        Weights(tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("keep", [0, 5, 200, -40], ids=["empty", "signature", "half", "directory lost"])
def test_truncated_pickle(tmp_path: pathlib.Path, keep: int):
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    torch.save(_torch_values(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with refused(ValueError, str(path)):
        Weights(tmp_path)


@pytest.mark.parity
def test_pickle_that_would_run_code(tmp_path: pathlib.Path):
    torch = pytest.importorskip("torch")
    torch.save({"a": pathlib.PurePosixPath("not a tensor")}, tmp_path / "pytorch_model.bin")
    with refused(ValueError, "more than plain tensors"):
        Weights(tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}], ids=["list", "numbers"])
def test_pickle_of_something_else(tmp_path: pathlib.Path, value: object):
    torch = pytest.importorskip("torch")
    torch.save(value, tmp_path / "pytorch_model.bin")
    with refused(ValueError, "expected a state dict"):
        Weights(tmp_path)


def test_pickle_without_pytorch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with refused(ImportError, "pytorch_model.bin", "pip install 'eagle-jax[torch]'"):
        Weights(tmp_path)


def test_missing_shard(tmp_path: pathlib.Path):
    _shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with refused(FileNotFoundError, "1 of the 2 files", "model-2.safetensors"):
        Weights(tmp_path)


def test_index_that_misplaces_a_tensor(tmp_path: pathlib.Path):
    index = _shards(tmp_path)
    index.write_text(index.read_text().replace('"a": "model-1', '"a": "model-2'))
    with refused(ValueError, "tensor a", "model-2.safetensors"):
        Weights(tmp_path)


def test_tensor_in_two_shards(tmp_path: pathlib.Path):
    _shards(tmp_path)
    save_file(VALUES, tmp_path / "model-2.safetensors")
    with refused(ValueError, "is in both", "model-1.safetensors", "model-2.safetensors"):
        Weights(tmp_path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "a file in the same folder"),
        ('{"weight_map": {"a": 3}}', "a file in the same folder"),
    ],
)
def test_index_that_is_none(tmp_path: pathlib.Path, text: str, word: str):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with refused(ValueError, word):
        Weights(tmp_path)


def test_json(tmp_path: pathlib.Path):
    path = tmp_path / "config.json"
    with refused(FileNotFoundError, "config.json is missing"):
        read_json(path)
    for damaged in (b"\xff\xfe\x00", b"[" * 100_000):
        path.write_bytes(damaged)
        with refused(ValueError, "not valid JSON"):
            read_json(path)
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
