"""The kernel for TPUs through the real TPU compiler, without a TPU; needs `pip install libtpu` (150 MB)."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "tpu_loop.py"


@pytest.mark.proof
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_the_cache_stays_where_it_is(topology: str):
    run = [sys.executable, str(SCRIPT), topology]
    shown = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["kernels"] == 1 and found["copies"] == 0 and found["collectives"] == 0
    assert found["temporary"] < 1e6, "of a cache of 4 MB on each chip"
