"""Where the machine code can be made it is made: its own tests are left out where it is not, so one has to tell."""

import importlib.util
import platform
from pathlib import Path

import pytest

from eagle_jax.ops.cpu import backend
from tests.ops.quantized_weights import PUBLISHED, random_weight

CPUS = Path("/proc/cpuinfo")
IS_X86 = platform.machine() == "x86_64" and CPUS.is_file()


@pytest.mark.skipif(
    not IS_X86 or not {"avx2", "fma"} <= set(CPUS.read_text().split()),
    reason="this CPU lacks instructions, or nothing tells which it has",
)
def test_it_is_used_on_a_cpu_of_the_last_ten_years():
    assert importlib.util.find_spec("llvmlite") is not None, "it comes with the package"
    assert backend.refusal() is None
    weights = {kind: random_weight(kind, 16, 128) for kind in PUBLISHED}
    assert {kind: backend.refusal(weight) for kind, weight in weights.items()} == dict.fromkeys(PUBLISHED)
