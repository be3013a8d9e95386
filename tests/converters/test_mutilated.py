"""Damaged and mistaken checkpoints: one sentence each, which names the tensor, the field or the file."""

import dataclasses
import json
import pathlib

import pytest
from folders import config, head3, refused, target, tensors, write
from mutilated import CASES, FILE, made

from eagle_jax.converters import load_head, load_target, save_head
from eagle_jax.converters.files import Weights


def test_there_are_more_than_fifty():
    assert len(CASES) > 50


def kind_of(name: str) -> str:
    return name.split(":")[0]


@pytest.mark.parametrize("kind", sorted(set(map(kind_of, CASES))))
def test_without_mistakes_they_load(tmp_path: pathlib.Path, kind: str):
    write(tmp_path, *made(kind))
    load_target(tmp_path) if kind == "t" else load_head(tmp_path, target())


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Before a single weight is read."""
    damage, words = CASES[name]
    values, stated = made(kind_of(name))
    damage(values, stated)
    folder = write(tmp_path, values, stated)
    taken: list[str] = []
    take = Weights.take
    monkeypatch.setattr(Weights, "take", lambda self, key: taken.append(key) or take(self, key))
    with refused(ValueError, *(word.replace(FILE, str(folder / FILE)) for word in words)):
        load_target(folder) if kind_of(name) == "t" else load_head(folder, target())
    assert set(taken) <= {"d2t", "t2d"}


@pytest.mark.parametrize("keep", [0, 7, 100, -1], ids=["empty", "size cut", "header cut", "last byte lost"])
def test_truncated(tmp_path: pathlib.Path, keep: int):
    save_head(head3(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with refused(ValueError, str(path), "not a whole safetensors file"):
        load_head(tmp_path, target())


def test_a_config_cut_short(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text()[:50])
    with refused(ValueError, str(path), "not valid JSON"):
        load_head(tmp_path, target())


def test_files_that_are_not_there(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    (tmp_path / "config.json").unlink()
    with refused(FileNotFoundError, "config.json is missing"):
        load_head(tmp_path, target())
    index = {"weight_map": dict.fromkeys(tensors(head3()), "model-00001-of-00002.safetensors")}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused(FileNotFoundError, "model-00001-of-00002.safetensors"):
        load_head(tmp_path, target())


def test_a_head_for_another_target(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    lm = target()
    for changes, words in (
        ({"hidden_size": 16}, ("features of 8", "the target's have 16")),
        ({"vocab_size": 4000}, ("vocabulary of 11", "has 4000")),
        ({"num_hidden_layers": 1}, ("layers [0, 1, 2]", "has 1")),
    ):
        other = dataclasses.replace(lm, config=dataclasses.replace(config(), **changes))
        with refused(ValueError, *words):
            load_head(tmp_path, other)
