"""A job that is killed again and again ends with exactly the output of one that never was."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from eagle_jax.jobs.output_parts import part_path

WORKER = pathlib.Path(__file__).with_name("job_worker.py")
ROWS, KILLS = 300, 10
RNG = np.random.default_rng(7)


def start(folder: pathlib.Path, output: pathlib.Path) -> subprocess.Popen:
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(folder / "questions.jsonl"), str(output)], env=environment
    )


def kill_in(worker: subprocess.Popen, part: pathlib.Path, lines: int, wait: float) -> bytes:
    """Kills it some time after it has finished so many rows; returns the whole lines that it leaves."""
    while worker.poll() is None and (part.read_bytes() if part.exists() else b"").count(b"\n") < lines:
        time.sleep(0.002)
    time.sleep(wait)
    worker.kill()  # SIGKILL: nothing is tidied up
    assert worker.wait(60) == -9
    content = part.read_bytes() if part.exists() else b""
    return content[: content.rfind(b"\n") + 1]


@pytest.mark.proof
def test_ten_kills_change_nothing(tmp_path):
    """Nothing that was finished is lost, and nothing is answered twice."""
    lengths = RNG.integers(1, 40, (ROWS, 2)).tolist()
    rows = [{"prompt_ids": RNG.integers(0, 61, n).tolist(), "max_new_tokens": m} for n, m in lengths]
    rows[100:100] = [{"id": "bad", "prompt_ids": []}]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    undisturbed, output = tmp_path / "undisturbed.jsonl", tmp_path / "answers.jsonl"
    assert start(tmp_path, undisturbed).wait(300) == 0

    part, before = part_path(output, 0, 1), b""
    for lines in sorted(RNG.integers(0, 4 * ROWS // 5, KILLS)):
        after = kill_in(start(tmp_path, output), part, int(lines), float(RNG.uniform(0, 0.03)))
        assert after.startswith(before), "a finished row was lost or changed"
        before = after
    assert start(tmp_path, output).wait(300) == 0
    numbers = [json.loads(line)["row"] for line in before.splitlines()]
    assert len(numbers) > ROWS / 2 and len(set(numbers)) == len(numbers), "too few rows to kill, or one answered twice"
    assert output.read_bytes() == undisturbed.read_bytes()
    answers = [json.loads(line) for line in output.read_bytes().splitlines()]
    assert [answer["id"] for answer in answers if "error" in answer] == ["bad"] and len(answers) == ROWS + 1
