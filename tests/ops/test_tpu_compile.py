"""The kernel and the loop through the real TPU compiler, without a TPU; `make tpu` installs it (150 MB) and runs it."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "tpu_loop.py"
WHOLE = pathlib.Path(__file__).parents[2] / "benchmarks" / "tpu_kernel.py"

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed"),
]


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_the_cache_stays_where_it_is(topology: str):
    shown = _run(SCRIPT, topology)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["kernels"] == 1 and found["copies"] == 0 and found["collectives"] == 0
    assert found["temporary"] < 1e6, "of a cache of 4 MB on each chip"


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_a_whole_loop_copies_no_cache_and_takes_little_on_top(chip: str):
    """Llama 3.1 8B with its EAGLE-3 head and the kernel, tree (60, 7, 10): at most 15 % beside weights and caches."""
    shown = _run(WHOLE, "--memory", "--chips", chip, "--nodes", "60")
    assert shown.returncode == 0 and f"x {chip} | 60 |" in shown.stdout, shown.stdout + shown.stderr


def _run(script: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without the flags that make tests compile faster: libtpu ends a process given one that it does not know."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = [sys.executable, str(script), *options]
    return subprocess.run(run, capture_output=True, text=True, timeout=900, check=False, env=environment)
