"""Every handler refuses wrong ranks, dtypes, sizes and numbers of buffers, and the process lives."""

import json
import pathlib
import subprocess
import sys

import pytest

from eagle_jax.ops.cpu import backend

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")


@pytest.mark.proof
def test_wrong_buffers_are_errors():
    script = pathlib.Path(__file__).with_name("hostile_buffers.py")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    counts = json.loads(ran.stdout.splitlines()[-1])
    assert counts["right"] >= 12 and counts["refused"] > 500 and counts["wild counts"] == 2 * counts["right"]
