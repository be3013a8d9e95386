"""`eagle-jax batch` in two real processes: each with its own rows, both with one model, and one that does not come."""

import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from test_examples import TPU, do

import eagle_jax
from eagle_jax.converters import save_head, save_target
from eagle_jax.testing import TINY, synthetic_pair

TOKENIZER = pathlib.Path(eagle_jax.__file__).parent / "pair" / "target"
ROWS = [{"id": i, "prompt": f"{i} and {i} are", "max_new_tokens": 4 + i} for i in range(9)] + [{"id": "none"}]


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[str, ...]:
    """The files and options of a job on a tiny pair with the shipped tokenizer."""
    folder = tmp_path_factory.mktemp("pair")
    target, head = synthetic_pair(dataclasses.replace(TINY, vocab_size=2048, num_hidden_layers=1))
    save_target(target, folder / "target")
    save_head(head, folder / "head", target=target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, folder / "target")
    pair = ("--target", str(folder / "target"), "--head", str(folder / "head"), "--tree", "6,2,2")
    return ("prompts.jsonl", "answers.jsonl", *pair, "--temperature", "1", "--batch-size", "4", "--token-ids")


@pytest.fixture(scope="module")
def alone(asked, tmp_path_factory) -> bytes:
    """The output of one process."""
    folder = tmp_path_factory.mktemp("alone")
    write(folder)
    process = start(folder, *asked)
    said = process.communicate(timeout=300)
    assert process.returncode == 1, said  # a row failed
    return (folder / "answers.jsonl").read_bytes()


@pytest.fixture
def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def write(folder: pathlib.Path) -> None:
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def start(folder: pathlib.Path, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    command = [sys.executable, "-m", "eagle_jax", "batch", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.proof
def test_a_rehearsal_on_this_machine_ends_with_the_output_of_one_process(tmp_path, asked, alone, port):
    """All steps of the scripts for a slice of two hosts: processes that meet, share the rows, and a merge."""
    write(tmp_path)
    settings = {"TYPE": "local-2", "PORT": port}
    steps = (
        ["create"],
        ["setup"],
        ["send", "prompts.jsonl"],
        ["start", *asked],
        ["await"],
        ["collect", "answers.jsonl"],
    )
    for step in steps:
        shown = do(TPU, *step, there=tmp_path, **settings)
        logs = sorted(log.read_text() for log in tmp_path.glob("rehearsal/*/job/job.log"))
        assert shown.returncode == 0, (step, shown.stderr, logs)
    assert "4 rows answered, 1 failed" in logs[0] and "5 rows answered" in logs[1], logs
    assert (tmp_path / "answers.jsonl").read_bytes() == alone
    assert do(TPU, "delete", there=tmp_path, **settings).returncode == 0 and not (tmp_path / "rehearsal").exists()


@pytest.mark.proof
def test_one_model_over_two_processes_writes_what_one_process_does(tmp_path, asked, alone, port):
    """Process 0 alone has what an earlier start left, and keeps the files; the other has nothing but the input."""
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
        write(folder)
    lines = alone.splitlines()
    left = b"".join(b'{"row": %d, %b\n' % (number, lines[number][1:]) for number in (3, 1))
    (folders[0] / "answers.jsonl.part-00000-of-00001").write_bytes(left)
    meeting = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--one-model", "--mesh", "data:1,model:2"]
    both = [start(folder, *asked, *meeting, "--process", str(number)) for number, folder in enumerate(folders)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    assert "7 rows answered, 2 answered before, 1 failed" in said[0][0], said
    assert (folders[0] / "answers.jsonl").read_bytes() == alone
    assert [path.name for path in folders[1].iterdir()] == ["prompts.jsonl"]


@pytest.mark.proof
def test_a_process_that_does_not_come_is_named_in_time(tmp_path, asked, port):
    write(tmp_path)
    meeting = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process", "0", "--timeout", "1"]
    waited = start(tmp_path, *asked, *meeting)
    out, error = waited.communicate(timeout=60)
    assert waited.returncode == 2 and "process 1 of 2 did not come within 1 s" in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]
