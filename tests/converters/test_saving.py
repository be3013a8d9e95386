"""Targets that are saved: what is written beside what is there, and what a failure leaves."""

import dataclasses
import json
import pathlib

import pytest
from folders import assert_same, refused, target, tensors

from eagle_jax.converters import load_target, save_target, writing


def test_shards(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    lm = target()
    monkeypatch.setattr(writing, "SHARD_BYTES", 1000)
    save_target(lm, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert files == {path.name for path in tmp_path.glob("*.safetensors")}
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors(lm).values())
    assert_same(load_target(tmp_path), lm)


def test_extra_entries(tmp_path: pathlib.Path):
    save_target(target(), tmp_path, extra={"eos_token_id": [2, 3]})
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [2, 3]
    with refused(ValueError, "rope_theta=3.0", "may change the model"):
        save_target(target(), tmp_path / "new", extra={"rope_theta": 3.0})
    assert not (tmp_path / "new").exists()


def test_saving_keeps_other_files_and_replaces_its_own(tmp_path: pathlib.Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    save_target(target(), tmp_path)
    wider = target(vocab_size=13)
    save_target(wider, tmp_path)
    assert_same(load_target(tmp_path), wider)
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "config.json", "model.safetensors"}
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_saving_beside_other_weights(tmp_path: pathlib.Path):
    other = tmp_path / "pytorch_model.bin"
    other.write_bytes(b"weights")
    with refused(FileExistsError, "pytorch_model.bin", "empty folder"):
        save_target(target(), tmp_path)
    assert list(tmp_path.iterdir()) == [other]


def test_saving_onto_a_file(tmp_path: pathlib.Path):
    path = tmp_path / "model"
    path.write_text("mine")
    with refused(NotADirectoryError, "is a file"):
        save_target(target(), path)
    assert path.read_text() == "mine"


def test_a_save_that_fails_leaves_everything_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    save_target(target(), tmp_path / "model")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_target(target(vocab_size=13), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_same(load_target(tmp_path / "model"), target())


def test_saving_what_transformers_cannot_say(tmp_path: pathlib.Path):
    lm = dataclasses.replace(target(), config=dataclasses.replace(target().config, norms="after"))
    with refused(ValueError, "qk_norm=False", "exaone4"):
        save_target(lm, tmp_path / "new")
    assert not (tmp_path / "new").exists()
