"""The kernel and the loop through XLA's compiler for an H200, without one; `make cuda` gets it (130 MB) and runs it."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from attention_cases import CASES

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
WHOLE = "-m", "benchmarks.compile_only.gpu_loop"
ROUNDED = "none,int8"  # whether XLA unpacks int4, which has groups, in memory hangs on its version

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(importlib.util.find_spec("jax_plugins") is None, reason="there is no CUDA plugin"),
]


def test_the_kernel_compiles_in_every_case():
    shown = _run(str(HERE / "gpu_cases.py"))
    assert shown.returncode == 0, shown.stderr[-3000:]
    lines = shown.stdout.splitlines()
    assert len(lines) == len(CASES) + 3 and all(line.startswith("True ") for line in lines)


def test_a_loop_copies_no_cache_and_unpacks_no_matrix():
    """Two layers of Llama 3.1 8B with its EAGLE-3 head, plain and with a tree of 60, with either attention."""
    shown = _run(*WHOLE, "--layers", "2", "--quantize", ROUNDED)
    assert shown.returncode == 0, shown.stdout + shown.stderr[-3000:]
    rows = [line for line in shown.stdout.splitlines() if line.startswith(("| none", "| int"))]
    assert len(rows) == 4 * len(ROUNDED.split(","))


def test_a_loop_of_int4_weights_unpacks_none_with_the_kernel():
    shown = _run(*WHOLE, "--layers", "1", "--quantize", "int4,int4-128", "--attention", "xla", "--int4", "gpu")
    assert shown.returncode == 0, shown.stdout + shown.stderr[-3000:]
    assert sum(line.startswith("| int4") for line in shown.stdout.splitlines()) == 4


def test_steps_for_certain_requests_wait_for_no_conditional():
    shown = _run("-m", "benchmarks.compile_only.modes", "--chips", "h200", EAGLE_JAX_OPS="xla")
    assert shown.returncode == 0, shown.stdout + shown.stderr[-3000:]
    counts = {cells[1]: int(cells[3]) for cells in _cells(shown.stdout, "h200")}
    assert counts["greedy"] == counts["sampled"] == 0 < counts["any"]


def test_memory_is_within_a_tenth_of_the_plan():
    """Prefill and step of four shapes; the TPU's compiler is asked in `test_tpu_compile.py`."""
    shown = _run("-m", "benchmarks.compile_only.planned", "--chips", "h200", EAGLE_JAX_OPS="xla")
    assert shown.returncode == 0, shown.stdout + shown.stderr[-3000:]
    assert len(_cells(shown.stdout, "h200")) == 8


def test_a_t4_copies_no_matrix_for_a_single_row():
    """Whose products of one float16 row XLA made with float32 copies of all weights, 2 GB for the output matrix."""
    shown = _run("-m", "benchmarks.compile_only.colab", "--devices", "t4", "--layers", "1")
    assert shown.returncode == 0, shown.stdout + shown.stderr[-3000:]
    assert [cells[-1] for cells in _cells(shown.stdout, "t4")] == ["", "0"] * 2


def test_floats_of_a_whole_matrix_are_seen():
    """The control: of matrices turned as for a TPU, XLA makes floats in memory."""
    shown = _run(str(HERE / "gpu_turned.py"))
    assert shown.returncode == 1 and shown.stdout.count("| int4 |") == 1, shown.stdout + shown.stderr[-3000:]


def _cells(shown: str, chip: str) -> list[list[str]]:
    """Cells of the lines of a table that begin with this chip."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()]
    return [cells for cells in lines if cells[0] == chip]


def _run(*script: str, **more: str) -> subprocess.CompletedProcess[str]:
    how = dict(capture_output=True, text=True, timeout=900, check=False, cwd=ROOT)
    return subprocess.run([sys.executable, *script], env=os.environ | {"JAX_PLATFORMS": "cpu"} | more, **how)
