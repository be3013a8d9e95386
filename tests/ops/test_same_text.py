"""The decoding loop with one backend or another: same text."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import params_of
from states import steps_by_row

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import DecodeState
from eagle_jax.ops import VARIABLE, AttentionCall
from eagle_jax.ops import attention_reference as xla
from eagle_jax.ops.attention_call import Backend
from eagle_jax.ops.tpu import backend as tpu
from eagle_jax.testing import TINY, cpu_backend, synthetic_pair

SLOTS, LENGTHS, NEW = 384, np.array([70, 5, 180], np.int32), 24
TARGET, HEAD = synthetic_pair(dataclasses.replace(TINY, num_hidden_layers=1), strength=0.3, error=0.15)


def decoded() -> DecodeState:
    """Ragged prompts, two rows sampled; in the end more than half of the cache is used, at first less."""
    tokens = np.random.default_rng(0).integers(0, 60, (3, SLOTS + 8)).astype(np.int32)
    request = params_of(LENGTHS, NEW, temperature=[0.0, 0.8, 1.0])
    given = TARGET, Eagle(head=HEAD, policy=DynamicTree(3, 1, 2)), request
    mode = Sampling(sampled=True, filtered=False)
    jax.clear_caches()  # of attention in other blocks
    state = compiled_prefill()(*given, jnp.asarray(tokens), mode=mode, slots=SLOTS, chunk=64, logprobs=False)
    return compiled_advance()(*given, state, jnp.asarray(1000, jnp.int32), mode=mode)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What computes attention over a cache from now on, by name; what is left to `xla` is told apart."""
    ran: list[str] = []

    def noted(name: str, backend: Backend, case: AttentionCall) -> jax.Array:
        if case.slots:
            ran.append(name)
        return backend(case)

    backends = {"tree_attention:tpu": tpu}
    if (cpu := cpu_backend()) is not None:
        backends["tree_attention:cpu"] = cpu
    for name, backend in backends.items():
        monkeypatch.setattr(backend, "tree_attention", functools.partial(noted, name, backend.tree_attention))
    monkeypatch.setattr(xla, "attend", functools.partial(noted, "xla", xla.attend))
    return ran


@pytest.mark.proof
def test_same_text(monkeypatch: pytest.MonkeyPatch):
    got, ran = {}, watched(monkeypatch)
    for name, backend, block in (("whole", "xla", SLOTS), ("blocks", "xla", 64), ("kernel", "tree_attention:tpu", 64)):
        monkeypatch.setenv(VARIABLE, backend)
        monkeypatch.setattr(xla, "BLOCK", block)
        monkeypatch.setattr(xla, "MAX_FUSED_TOKENS", 0 if name == "whole" else 32)
        ran.clear()
        state = decoded()
        assert set(ran) == {backend}, name
        assert (steps_by_row(state) < NEW - 1).all(), "no draft was accepted: half of the test saw nothing"
        got[name] = [row[: prompt + NEW] for row, prompt in zip(np.asarray(state.tokens), LENGTHS, strict=True)]
    for name in ("blocks", "kernel"):
        np.testing.assert_equal(got[name], got["whole"], err_msg=name)
