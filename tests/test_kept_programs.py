"""Compiled programs are kept on disk from `load` on, so the next process compiles nothing."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import jax
import pytest

from eagle_jax import platform
from eagle_jax.converters import save_target
from eagle_jax.testing import TINY, cpu_backend, synthetic_pair

# Prints what an answer asked JAX to compile, what of that was on disk, and where.
ANSWER = """
import collections, json, os, sys
import jax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **more: seen.update([event.rpartition("/")[2]]))
import eagle_jax
by_import = os.path.exists(os.environ["XDG_CACHE_HOME"])
eagle_jax.generate(eagle_jax.load(sys.argv[1]), [1, 2, 3], max_new_tokens=4)
counts = seen["compile_requests_use_cache"], seen["cache_hits"]
print(json.dumps([by_import, *counts, jax.config.jax_compilation_cache_dir]))
"""


class Seen(NamedTuple):
    """What `ANSWER` prints; `by_import` says whether the import alone made the folder."""

    by_import: bool
    asked: int
    found: int
    folder: str | None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("model")
    save_target(synthetic_pair(dataclasses.replace(TINY, num_hidden_layers=1))[0], folder)
    return folder


def answer(model: pathlib.Path, caches: pathlib.Path) -> Seen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "EAGLE_JAX_"))}
    shown = subprocess.run(
        [sys.executable, "-c", ANSWER, str(model)],
        env={**kept, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(caches)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return Seen(*json.loads(shown.stdout))


@pytest.mark.proof
def test_the_next_process_compiles_nothing(model, tmp_path):
    first = answer(model, tmp_path / "caches")
    assert not first.by_import, "an import writes nothing"
    assert first.asked > 0
    second = answer(model, tmp_path / "caches")
    assert second.found == second.asked == first.asked
    folder, *others = sorted((tmp_path / "caches" / "eagle_jax" / "compiled").iterdir())
    assert folder.name.startswith("jaxlib-") and str(folder) == first.folder == second.folder
    assert [other.name.split("-")[0] for other in others] == (["llvmlite"] if cpu_backend() is not None else [])
    assert all(one.stat().st_mode & 0o777 == 0o700 for one in (folder, *others))


@pytest.fixture
def unset(monkeypatch, tmp_path):
    """JAX without a folder, as a user has it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", given)


def test_what_the_user_set_stays(unset, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    platform.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs") and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_in_one_sentence(unset, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning) as told:
        platform.keep_programs()
    [sentence] = [str(one.message) for one in told]
    assert sentence.startswith("compiled programs are not kept ([Errno 20] Not a directory: ")
    assert sentence.endswith("or set EAGLE_JAX_COMPILATION_CACHE=off") and jax.config.jax_compilation_cache_dir is None


def test_it_can_be_switched_off(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("EAGLE_JAX_COMPILATION_CACHE", "off")
    platform.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None and not list(tmp_path.iterdir())
    monkeypatch.setenv("EAGLE_JAX_COMPILATION_CACHE", "no")
    with pytest.raises(ValueError, match='=\'no\' is not known; expected "on" or "off"'):
        platform.keep_programs()


def test_a_user_without_a_home(unset, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(platform.pathlib.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.warns(RuntimeWarning, match="are not kept .this user has no home folder; let XDG_CACHE_HOME"):
        platform.keep_programs()


def test_another_processor_has_another_folder(unset, monkeypatch, tmp_path):
    facts = {"model name": "One", "flags": "sse2 avx2 avx512f"}
    monkeypatch.setattr(platform, "_cpu_facts", lambda: facts)
    for changed in ({}, {"flags": "avx512f avx2 sse2"}, {"flags": "sse2 avx2"}, {"model name": "Two"}):
        facts |= {"model name": "One", "flags": "sse2 avx2 avx512f"} | changed
        jax.config.update("jax_compilation_cache_dir", None)
        platform.keep_programs()
    assert len(list((tmp_path / "eagle_jax" / "compiled").iterdir())) == 3
