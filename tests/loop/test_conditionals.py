"""Programs for what the rows of a batch ask and no more: no conditionals, and the same tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_decode import CHUNK, HEAD, HEAD3, PROMPTS, SLOTS, TARGET, ask

from benchmarks.compile_only.launches import conditionals
from benchmarks.compile_only.shapes import platform
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.loop.decode import advance, compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.requests.options import joint_mode
from eagle_jax.requests.request import WITH_TABLES
from eagle_jax.scheduling.logits_arrays import processor_of

ANY = Sampling(sampled=True, filtered=True)
GREEDY = joint_mode([])
DRAFTERS = {
    "none": Plain(),
    "eagle": Eagle(head=HEAD, policy=DynamicTree(6, 2, 2)),
    "eagle3": Eagle(head=HEAD3, policy=DynamicTree(6, 2, 2)),
}
MODES = {
    "greedy": GREEDY,
    "logprobs": dataclasses.replace(GREEDY, logprobs=1),
    "top logprobs": dataclasses.replace(GREEDY, logprobs=2),
    "sampled": dataclasses.replace(GREEDY, sampled=True),
    "top-p": dataclasses.replace(GREEDY, sampled=True, filtered=True, top_p=True),
    "top-k": dataclasses.replace(GREEDY, sampled=True, filtered=True, top_k=True),
    "structured": dataclasses.replace(GREEDY, structured=True),
}
DRAWN = {  # temperature, top-k, top-p
    "greedy": (0.0, 0, 1.0),
    "sampled": (0.8, 0, 1.0),
    "top-p": (0.8, 0, 0.9),
    "top-k": (0.8, 5, 1.0),
}


def asked(name: str) -> tuple[BatchParams, jax.Array]:
    """Two requests of a mode, to a server that can record log-probabilities."""
    temperature, top_k, top_p = DRAWN.get(name, DRAWN["greedy"])
    params, tokens, _ = ask(PROMPTS[:2], temperature, top_p, new=12)
    settings = dataclasses.replace(params.settings, top_k=jnp.full(2, top_k, jnp.int32))
    return dataclasses.replace(params, settings=settings, top_logprobs=jnp.full(2, name == "top logprobs")), tokens


def begun(name: str, params: BatchParams, tokens: jax.Array) -> DecodeState:
    fixed = dict(mode=ANY, slots=SLOTS, chunk=CHUNK, logprobs=2)
    return compiled_prefill()(TARGET, DRAFTERS[name], params, tokens, **fixed)


def count(drafter: str, mode: str, of: Sampling) -> int | None:
    """Conditionals of a step as a GPU has it, in which no operation is computed by the CPU's backend."""
    params, tokens = asked(mode)
    if mode == "structured":
        tables = processor_of([(WITH_TABLES.options, (), None)] * 2, TARGET.config.vocab_size)
        params = dataclasses.replace(params, processor=tables)
    state = begun(drafter, dataclasses.replace(params, processor=None), tokens)
    jax.clear_caches()  # functions that were traced for a CPU
    with platform("gpu"):
        traced = jax.jit(advance, static_argnames="mode").lower(
            TARGET, DRAFTERS[drafter], params, state, jnp.int32(4), mode=of
        )
    jax.clear_caches()
    return conditionals(traced.compile().as_text())


@pytest.mark.matrix
@pytest.mark.parametrize(("drafter", "mode"), [*((one, "greedy") for one in DRAFTERS), *(("eagle", m) for m in MODES)])
def test_a_step_for_certain_requests_has_no_conditionals(drafter: str, mode: str):
    assert count(drafter, mode, MODES[mode]) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(("mode", "expected"), [("greedy", 10), ("structured", 17)])
def test_a_step_for_any_request_skips_what_nobody_asks_for(mode: str, expected: int):
    """One for noise, one for the likeliest tokens, two for top-k and top-p of the draws and of each of three drafted
    levels; with tables also one for automata at the draws and two at each level.
    """
    assert count("eagle", mode, ANY) == expected


@pytest.mark.matrix
@pytest.mark.parametrize("name", [name for name in MODES if name != "structured"])
def test_tokens_are_the_same_in_either_program(name: str):
    drafter = "eagle"
    params, tokens = asked(name)
    run = [
        compiled_advance()(TARGET, DRAFTERS[drafter], params, begun(drafter, params, tokens), jnp.int32(100), mode=mode)
        for mode in (ANY, MODES[name])
    ]
    assert bool(run[0].done.all())
    for field in ("tokens", "length", "done", "steps", "committed_at_step"):
        np.testing.assert_array_equal(*(getattr(state, field) for state in run))
    if MODES[name].logprobs:
        np.testing.assert_array_equal(*(state.logprobs for state in run))
    if MODES[name].logprobs > 1:
        jax.tree.map(np.testing.assert_array_equal, *(state.top for state in run))
