"""benchmarks/gpu.sh: what it writes when all goes well, when a question fails, and when there is no GPU."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks.gpu import collect

SCRIPT = pathlib.Path(__file__).parents[3] / "benchmarks" / "gpu.sh"
MACHINE = {
    "platform": "gpu",
    "device": "NVIDIA H200",
    "date": "2026-01-02",
    "jax": "0.12.0",
    "python": "3",
    "commit": "a",
}
TABLE = {"title": "Speed", "columns": ["method", "ms"], "rows": [["plain", 0.5]]}


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} | environment
    return subprocess.run([SCRIPT, *options], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.proof
def test_a_rehearsal_asks_every_question(tmp_path: pathlib.Path):
    (tmp_path / "checkout" / "eagle").mkdir(parents=True)
    shown = run(
        "--tiny",
        "--minutes",
        "30",
        "--into",
        str(tmp_path),
        EAGLE_CHECKOUT=str(tmp_path / "checkout"),
    )
    assert shown.returncode == 1 and shown.stderr.splitlines()[-1].startswith("not to the end: eagle;"), shown.stderr
    results, page = (pathlib.Path(path).read_text() for path in shown.stdout.splitlines()[-1].split())
    questions = json.loads(results)["questions"]
    assert len(questions) >= 13 and questions["eagle"]["state"].startswith("failed: ")
    for name, question in questions.items():
        assert name == "eagle" or question["state"] == "done", (name, question["state"])
        assert bool(question["tables"]) == (name not in ("eagle", "tests"))
    for row in questions["speedup"]["tables"][0]["rows"]:
        assert row[-2:] == [True, True], "texts are plain decoding's, and the constructed ones"
    assert collect.REHEARSAL in page and page == collect.page(json.loads(results)), "the page is made of the JSON alone"


def test_the_most_important_questions_come_first_and_fit_ten_minutes():
    asked = re.findall(r"^  ask (\w+) (\d+) ", SCRIPT.read_text(), re.MULTILINE)
    first = ["ops", "speedup", "batch", "decode", "int4", "tests"]
    assert [name for name, _ in asked[: len(first)]] == first
    assert sum(int(limit) for _, limit in asked[: len(first)]) <= 525  # of 8.75 minutes


def test_what_fails_is_recorded_and_what_was_there_stays(tmp_path: pathlib.Path):
    path = collect.begin(tmp_path, MACHINE, tiny=False)
    assert path.name == "nvidia-h200-2026-01-02.json"
    tables = tmp_path / "tables.jsonl"
    tables.write_text(f"{json.dumps(TABLE | {'rows': []})}\n{json.dumps(TABLE)}\n" + '{"title": "Sp')
    collect.add(path, "step", "stopped after 20 s", tables)
    collect.add(collect.begin(tmp_path, MACHINE, tiny=False), "batch", "failed: no memory", tmp_path / "none")
    questions = json.loads(path.read_text())["questions"]
    assert questions["step"] == {"state": "stopped after 20 s", "commit": "a", "tables": [TABLE]}
    assert questions["batch"]["tables"] == []
    assert "| plain | 0.500 |" in path.with_suffix(".md").read_text()


def test_without_a_gpu_nothing_is_written(tmp_path: pathlib.Path):
    shown = run("--into", str(tmp_path))
    assert shown.returncode == 1 and "JAX sees no GPU here, only cpu" in shown.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tiny"], "say with --into where its results go"),
        (["--only", "step,sleep"], "there is no question sleep; expected some of"),
        (["--fast"], "unknown option --fast"),
    ],
)
def test_wrong_options(options: list[str], message: str):
    shown = run(*options)
    assert shown.returncode == 2 and message in shown.stderr
