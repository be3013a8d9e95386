"""What every backend of tree attention does, on an NVIDIA GPU; skipped where there is none."""

import functools

import jax
import pytest
from test_tree_attention import Contract

from eagle_jax.ops import attention_reference as xla
from eagle_jax.ops.gpu import tree_attention as pallas_gpu


@pytest.fixture(autouse=True, scope="module")
def _needs_a_gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("there is no GPU")


class TestXLA(Contract):
    attend = staticmethod(xla.attend)


class TestKernel(Contract):
    attend = staticmethod(functools.partial(pallas_gpu.attend, interpret=False))
