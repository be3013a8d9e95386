"""A run that is killed again and again ends, bit for bit, as one that never was."""

import os
import pathlib
import subprocess
import sys

import pytest
from chats import config

WORKER = pathlib.Path(__file__).with_name("kill_worker.py")


def start(folder: pathlib.Path) -> subprocess.Popen:
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(WORKER.parent),
    }
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    )


def kill_at(folder: pathlib.Path, line: str) -> list[str]:
    """Runs until it says `line`, then kills it there; returns what it said."""
    worker, said = start(folder), []
    for text in worker.stdout:
        said.append(text.strip())
        if said[-1] == line:
            worker.kill()  # SIGKILL: nothing is tidied up
            break
    worker.stdout.close()
    assert worker.wait(120) == -9, said
    return said


def finish(folder: pathlib.Path) -> list[str]:
    worker = start(folder)
    said = worker.communicate(timeout=300)[0].splitlines()
    assert worker.returncode == 0
    return said


def head(folder: pathlib.Path) -> bytes:
    return (folder / "run" / "head" / "model.safetensors").read_bytes()


@pytest.mark.proof
def test_a_killed_run_ends_with_the_weights_of_one_never_killed(tmp_path):
    config(tmp_path)  # writes the conversations and the configuration
    text = (tmp_path / "train.yaml").read_text()
    (tmp_path / "train.yaml").write_text(text.replace("steps: 8", "steps: 60").replace("every: 3", "every: 7"))
    assert finish(tmp_path)[-1] == "Measured 60"
    expected, folder = head(tmp_path), tmp_path / "run"
    folder.rename(tmp_path / "never_killed")

    kill_at(tmp_path, "Measured 21")  # while its checkpoint is being written
    said = kill_at(tmp_path, "Updated 38")  # between two checkpoints
    assert said[0] in ("Prepared 7", "Prepared 14", "Prepared 21"), "it goes on behind a checkpoint that is complete"
    said = finish(tmp_path)
    assert said[0] in ("Prepared 21", "Prepared 28", "Prepared 35") and said[-1] == "Measured 60"
    assert head(tmp_path) == expected
