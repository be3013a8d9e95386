"""The kernel and the loop through the real TPU compiler, without a TPU; `make tpu` installs it (150 MB) and runs it."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "tpu_loop.py"
ROOT = pathlib.Path(__file__).parents[2]
WHOLE = "-m", "benchmarks.compile_only.tpu_slice", "--requests", "1", "--slots", "2048"

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed"),
]


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_the_cache_stays_where_it_is(topology: str):
    shown = _run(str(SCRIPT), topology)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["kernels"] == 1 and found["copies"] == 0 and found["collectives"] == 0
    assert found["temporary"] < 1e6, "of a cache of 4 MB on each chip"


@pytest.mark.parametrize("topology, chips", [("v5e:2x2", 2), ("v5p:2x2x1", 1), ("v6e:2x2", 1)])
def test_a_whole_loop_copies_no_cache_and_takes_the_memory_that_is_planned(topology: str, chips: int):
    """Llama 3.1 8B with its EAGLE-3 head and the kernel, tree (60, 7, 10)."""
    shown = _run(*WHOLE, "--topology", topology, "--mesh", f"model:{chips}", EAGLE_JAX_OPS="tree_attention:tpu")
    assert shown.returncode == 0 and "copies of a cache: 0;" in shown.stdout, shown.stdout + shown.stderr


def test_memory_of_four_shapes_is_within_a_tenth_of_the_plan():
    shown = _run("-m", "benchmarks.compile_only.planned", "--chips", "v6e", EAGLE_JAX_OPS="xla")
    assert shown.returncode == 0 and shown.stdout.count("| v6e |") == 8, shown.stdout + shown.stderr


def _run(*script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Without the flags that make tests compile faster: libtpu ends a process given one that it does not know."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | more
    how = dict(capture_output=True, text=True, timeout=900, check=False, cwd=ROOT)
    return subprocess.run([sys.executable, *script], env=environment, **how)
