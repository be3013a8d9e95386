"""What a script that is given something wrong says."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "given, said",
    [
        (["acceptance.py", "--questions", "none.jsonl"], "acceptance.py: none.jsonl: no such file or directory"),
        (["wide.py", "--shape", "tiny", "--quantize", "int9"], "wide.py: quantize='int9' is not known"),
    ],
)
def test_it_is_one_sentence(given, said, tmp_path):
    command = [sys.executable, SCRIPTS / given[0], *given[1:]]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert shown.returncode == 1 and said in shown.stderr.splitlines()[-1] and "Traceback" not in shown.stderr
