"""benchmarks/gpu.sh: what it writes when all goes well, when a part fails, and when there is no time or no GPU."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import gpu.__main__ as command
import pytest
from gpu import machine, record, report, targets
from gpu.run import Run
from gpu.run import environment as environment_of
from gpu.sections import SECTIONS

SCRIPT = pathlib.Path(command.__file__).parents[1] / "gpu.sh"
MACHINE = {"platform": "gpu", "device": "NVIDIA H200", "devices": 1, "cores": 16, "jax": "0.11.0", "jaxlib": "0.11.0"}
MACHINE |= {"torch": None, "python": "3.12.3", "commit": None, "date": "2026-01-02", "excluded": None}


def rehearsed(path: pathlib.Path, **how: Any) -> Run:
    return Run(path, dict(MACHINE), dict(os.environ), **{"tiny": True, "minutes": 9, "sections": {}, **how})


@pytest.mark.proof
def test_a_rehearsal_runs_every_section(tmp_path: pathlib.Path):
    empty = tmp_path / "nothing"
    (empty / "eagle").mkdir(parents=True)
    environment = os.environ | {"PYTHON": sys.executable, "EAGLE_CHECKOUT": str(empty), "XLA_FLAGS": ""}
    run = [str(SCRIPT), "--tiny", "--minutes", "30", "--into", str(tmp_path / "results")]  # on a busy machine, too
    shown = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert shown.returncode == 1 and shown.stderr.splitlines()[-1].startswith("eagle: not to the end"), shown.stderr
    written, page = (pathlib.Path(line) for line in shown.stdout.splitlines()[-2:])
    results, text = json.loads(written.read_text()), page.read_text()
    sections = results["sections"]
    left_out = {"gpt-fast"} | ({"peers"} if results["machine"]["torch"] is None else set())
    assert list(sections) == list(SECTIONS)
    for name, section in sections.items():
        wanted = "failed" if name == "eagle" else "left out" if name in left_out else "done"
        assert section["state"] == wanted, (name, section["error"])
        assert bool(section["tables"]) == (wanted == "done")
    lacking = "torch" if results["machine"]["torch"] is None else "eagle.model"
    assert sections["eagle"]["error"].endswith(f"No module named '{lacking}'") and sections["eagle"]["log"]
    for row in sections["speedup"]["tables"]["answers"]:
        assert row["text_is_plain_decodings"] and row["text_is_the_charts"], row["method"]
    assert results["rehearsal"] and report.REHEARSAL in text
    assert text == report.markdown(results), "the page is made of the JSON alone"
    assert {row["state"] for row in results["targets"]} == {targets.UNKNOWN}, "tiny shapes meet and miss nothing"


def test_no_gpu_is_one_sentence_and_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "probe", lambda environment: MACHINE | {"platform": "cpu", "device": "cpu"})
    monkeypatch.setattr(sys, "argv", ["gpu", "--into", str(tmp_path)])
    with pytest.raises(
        SystemExit, match="JAX sees no GPU here, only cpu; run this where .* or rehearse it with --tiny"
    ):
        command.main()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_none_is_told_of_before_anything_is_measured(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(machine, "probe", lambda environment: MACHINE)
    monkeypatch.setattr(sys, "argv", ["gpu", "--into", str(tmp_path / "file")])
    with pytest.raises(SystemExit, match="--into .*file cannot be written into: File exists"):
        command.main()


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--tiny"], "say with --into where"), (["--only", "decode,sleep"], "there is no section 'sleep'; expected some")],
)
def test_wrong_options(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["gpu", *given])
    with pytest.raises(SystemExit):
        command.main()
    assert said in capsys.readouterr().err


def test_what_there_is_stays_when_a_run_is_broken_off(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def one(self: Run, name: str, after: list[str], rows: pathlib.Path, log: pathlib.Path) -> tuple[str, str | None]:
        rows.write_text('{"table": "rows", "row": {"rows": 60, "of_one_row": 1.1}}\n{"table": "rows", "ro')
        if name == "speedup":
            raise KeyboardInterrupt
        return "done", None

    monkeypatch.setattr(Run, "_one", one)
    path = tmp_path / "results" / "here.json"
    earlier = {"decode": {"state": "done", "error": None, "seconds": 1.0, "tables": {}}}
    with pytest.raises(SystemExit, match="broken off in speedup; what there is is in .*here.json"):
        rehearsed(path, tiny=False, sections=earlier).all(["cycle", "speedup", "batch"], tmp_path)
    results = json.loads(path.read_text())
    assert {name: one["state"] for name, one in results["sections"].items()} == {
        "decode": "done",
        "cycle": "done",
        "speedup": "broken off",
    }
    assert results["sections"]["cycle"]["tables"] == {"rows": [{"rows": 60, "of_one_row": 1.1}]}
    states = {row["target"]: row["state"] for row in results["targets"]}
    assert states["a pass over 60 nodes, in plain steps"] == targets.MET
    assert states["the same in int8"] == targets.UNKNOWN
    assert report.REHEARSAL not in path.with_suffix(".md").read_text()


def test_without_time_nothing_is_begun(tmp_path: pathlib.Path):
    run = rehearsed(tmp_path / "here.json", minutes=0)
    run.all(["decode", "gpt-fast"], tmp_path)
    assert run.sections["decode"]["error"] == "no time was left; run it alone with --only decode"
    assert run.sections["gpt-fast"]["error"] == "GPT_FAST_CHECKOUT names no checkout"


def test_a_section_has_its_own_time_and_what_those_after_it_leave(tmp_path: pathlib.Path):
    run = rehearsed(tmp_path / "here.json")
    run.environment.pop("EAGLE_CHECKOUT", None)
    own, later = SECTIONS["cycle"].limit, SECTIONS["speedup"].limit
    assert run.limit("cycle", ["speedup"], 500) == 500 - later
    assert run.limit("cycle", ["eagle"], 500) == 500, "what will be left out needs no time"
    assert run.limit("cycle", ["speedup"], own + 1) == own
    assert run.limit("cycle", [], 20) == 20


def test_flags_of_a_section_stand_beside_the_others():
    assert environment_of({"XLA_FLAGS": "--xla_a=1"}, SECTIONS["graphs"])["XLA_FLAGS"] == (
        "--xla_a=1 --xla_gpu_enable_command_buffer=+WHILE"
    )
    assert environment_of({"XLA_FLAGS": "--xla_a=1"}, SECTIONS["decode"]) == {"XLA_FLAGS": "--xla_a=1"}


def test_compiled_programs_stay_for_the_next_command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))

    def folder(scratch: str, tiny: bool = False) -> str:
        return command._environment(tmp_path / scratch, tiny)["JAX_COMPILATION_CACHE_DIR"]

    assert folder("one") == folder("two") and folder("one").startswith(str(tmp_path / "user" / "eagle_jax"))
    assert folder("one", tiny=True) == str(tmp_path / "one" / "compiled")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/given")
    assert folder("one") == "/given"


def test_a_jax_that_is_left_out_is_named_on_the_page():
    assert machine.excluded("0.11.0") is None
    said = machine.excluded("0.11.1")
    assert said is not None and said.startswith("pyproject.toml leaves jax 0.11.1 out (jax")
    page = report.markdown({"machine": MACHINE | {"excluded": said}, "rehearsal": False, "targets": [], "sections": {}})
    assert said in page


def test_targets_are_held_from_their_side():
    found = {
        "decode": {"tables": {"plain": [{"weights": "bfloat16", "of_copy_bandwidth": 0.74}]}},
        "cycle": {"tables": {"parts": [{"part": "whole cycle", "of_a_plain_step": 1.4}]}},
        "batch": {"tables": {"batches": [{"rows": 64, "speedup": 1.2}]}},
    }
    states = [row["state"] for row in targets.held(found)]
    rest = targets.UNKNOWN
    assert states == [targets.MISSED, rest, rest, rest, rest, targets.MISSED, rest, rest, targets.MET]


def test_every_target_names_a_section():
    assert {target.found[0] for target in targets.TARGETS} <= set(SECTIONS)


def test_rows_come_back_by_table(tmp_path: pathlib.Path):
    write = record.writer(tmp_path / "rows.jsonl")
    write("a", x=1)
    write("b", x=2.5, y=None)
    write("a", x=3, same=True)
    write("a", x=1, known="better")
    assert record.tables(tmp_path / "rows.jsonl") == {
        "a": [{"x": 1, "known": "better"}, {"x": 3, "same": True}],
        "b": [{"x": 2.5, "y": None}],
    }
