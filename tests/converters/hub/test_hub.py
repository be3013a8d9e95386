"""Names of models."""

import pathlib

import pytest

from eagle_jax.converters import resolve
from eagle_jax.converters.hub import resolving
from tests.converters.folders import refused


def test_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "a/b/c", "with space"])
def test_no_such_folder(name: str):
    with refused(FileNotFoundError, "no model folder", name.removeprefix("./")):
        resolve(name)


def test_a_file(tmp_path: pathlib.Path):
    path = tmp_path / "model.safetensors"
    path.touch()
    with refused(FileNotFoundError, "is a file", "the model folder"):
        resolve(path)


@pytest.mark.parametrize("stored", ["model-1-of-2.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
def test_repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stored: str):
    """Pickles are fetched only from a repository without safetensors."""
    fetched: list[str] = []

    def fetch(name: str, *, allow_patterns: list[str]) -> str:
        assert name == "owner/model"
        fetched.extend(pattern for pattern in allow_patterns if pattern not in fetched)
        for path in ("config.json", "model.safetensors.index.json" if "safetensors" in stored else stored):
            if any(pathlib.PurePath(path).match(pattern) for pattern in allow_patterns):
                (tmp_path / path).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve("owner/model") == tmp_path
    assert (resolving.PICKLES[0] in fetched) == (not stored.endswith(".safetensors"))
    assert {"*.json", "model*.safetensors"} <= set(fetched)


def test_no_network(monkeypatch: pytest.MonkeyPatch):
    def fetch(name: str, *, allow_patterns: list[str]) -> str:
        raise ConnectionError("name or service not known.\nmore words")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with refused(FileNotFoundError, "'owner/model'", "name or service not known)", "give its folder"):
        resolve("owner/model")
    with refused(FileNotFoundError, "'vicuna-7b'", "eagle-jax models"):
        resolve("vicuna-7b")
