"""Quantized files are loaded without their expansion to 16 bits, and what reading freed is given back."""

import sys

import pytest

from benchmarks.decode.loading_memory import memory_of


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_most_memory_while_loading():
    most, loaded = memory_of("AWQ", 6)
    assert most < 2.0, "bytes for each number"
    assert loaded < 0.8  # half a byte, scales and minima
    most, loaded = memory_of("bfloat16", 16)  # what else a process takes is less of it
    assert most > 2.2 and 1.6 < loaded < 2.4, "what is measured is the memory of weights"
