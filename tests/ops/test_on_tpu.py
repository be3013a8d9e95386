"""What every backend of tree attention does, on a TPU; skipped where there is none."""

import functools

import jax
import pytest
from test_tree_attention import Contract

from eagle_jax.ops import attention_reference as xla
from eagle_jax.ops.tpu import tree_attention as pallas_tpu


@pytest.fixture(autouse=True, scope="module")
def _needs_a_tpu() -> None:
    if jax.default_backend() != "tpu":
        pytest.skip("there is no TPU")


class TestXLA(Contract):
    attend = staticmethod(xla.attend)


class TestKernel(Contract):
    attend = staticmethod(functools.partial(pallas_tpu.attend, interpret=False))
