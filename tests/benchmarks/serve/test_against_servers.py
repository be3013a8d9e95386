"""Servers beside ours: how each is started, and that a path which leads nowhere is said in a sentence."""

import argparse
import json
import pathlib
import sys

import pytest

from benchmarks.peers.llama_cpp import MODES
from benchmarks.serve import against_servers


def executable(file: pathlib.Path, script: str) -> pathlib.Path:
    file.write_text(f"#!{sys.executable}\n{script}\n")
    file.chmod(0o700)
    return file


@pytest.fixture
def gguf(tmp_path) -> pathlib.Path:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(20))
    return tmp_path / "m.gguf"


def test_llama_cpp_runs_plainly_and_in_each_mode_that_it_knows(tmp_path, gguf):
    executable(tmp_path / "llama-server", "print('--spec-type [none|ngram-simple|ngram-mod]')")
    commands = against_servers.llama_cpp(tmp_path, gguf, MODES)
    assert list(commands) == ["llama.cpp plain", "llama.cpp ngram-simple", "llama.cpp ngram-mod"]
    plain, *others = commands.values()
    assert [command[: len(plain)] for command in others] == [plain] * 2
    assert [command[len(plain) :] for command in others] == [["--spec-type", mode] for mode in MODES[1::3]]
    assert {"{port}", "{slots}"} < {*plain}
    assert list(against_servers.llama_cpp(tmp_path, gguf, ("ngram-mod",))) == ["llama.cpp ngram-mod"]


def test_what_has_no_server_of_llama_cpp(tmp_path, gguf):
    with pytest.raises(ValueError, match="holds no llama-server; give the folder of llama.cpp's binaries, or a Python"):
        against_servers.llama_cpp(tmp_path, gguf, MODES)
    with pytest.raises(ValueError, match="gives no server of llama.cpp: ModuleNotFoundError: No module named 'xlla"):
        against_servers.llama_cpp(pathlib.Path(sys.executable), gguf, MODES)
    with pytest.raises(ValueError, match="llama.cpp reads GGUF files, and the target is"):
        against_servers.llama_cpp(tmp_path, tmp_path, MODES)
    with pytest.raises(argparse.ArgumentTypeError, match="'ngram' is none of none, ngram-simple"):
        against_servers.modes_in("none,ngram")
    assert against_servers.modes_in("none,ngram-mod") == ("none", "ngram-mod")


def test_vllm_runs_plainly_and_with_a_head(tmp_path):
    command, target, head = executable(tmp_path / "vllm", ""), tmp_path / "target", tmp_path / "head"
    for folder in (target, head):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    assert list(against_servers.vllm(command, target, None, 3)) == ["vLLM plain"]
    plain, drafting = against_servers.vllm(command, target, head, 4).values()
    assert drafting[: len(plain)] == plain and plain[:3] == [str(command), "serve", str(target)]
    settings = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 4}
    assert drafting[-2] == "--speculative-config" and json.loads(drafting[-1]) == settings


@pytest.mark.parametrize(
    "command, target, head, said",
    [
        ("nowhere", "target", None, "is no command; give the path of vllm in the environment that has it"),
        ("target", "target", None, "is no command"),
        ("vllm", None, None, "which was not given; `eagle-jax convert TARGET FOLDER` makes one"),
        ("vllm", "empty", None, "which holds no config.json"),
        ("vllm", "target", "empty", "holds no config.json; `eagle-jax convert --to speculators` makes a head"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, command, target, head, said):
    executable(tmp_path / "vllm", "")
    for name in ("target", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    given = [name and tmp_path / name for name in (command, target, head)]
    with pytest.raises(ValueError, match=said):
        against_servers.vllm(*given, 3)
