"""What a script that is given something wrong says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import tables

ROOT = Path(__file__).parents[3]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "given, said",
    [
        (["decode.acceptance", "--questions", "none.jsonl"], "acceptance.py: none.jsonl: no such file or directory"),
        (["serve.batching", "--questions", "none.jsonl"], "batching.py: none.jsonl: no such file or directory"),
        (["decode.speedup", "--shape", "tiny", "--quantize", "int9"], "speedup.py: quantize='int9' is not known"),
    ],
)
def test_it_is_one_sentence(given, said):
    command = [sys.executable, "-m", f"benchmarks.{given[0]}", *given[1:]]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert shown.returncode == 1 and said in shown.stderr.splitlines()[-1] and "Traceback" not in shown.stderr


def test_a_table_is_printed_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "tables.jsonl"))
    tables.show("Speed", ("method", "ms", "same"), [("plain", 0.25, True), ("EAGLE", 1234.5, None)])
    assert capsys.readouterr().out.splitlines()[3:] == [
        "| method | ms | same |",
        "| --- | --- | --- |",
        "| plain | 0.250 | yes |",
        "| EAGLE | 1,234 | - |",
    ]
    written = json.loads((tmp_path / "tables.jsonl").read_text())
    assert written == {
        "title": "Speed",
        "columns": ["method", "ms", "same"],
        "rows": [["plain", 0.25, True], ["EAGLE", 1234.5, None]],
    }
