"""Proofs about the loop on tiny models: same text with every drafter, and a state like a fresh prefill's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import padded, params_of
from states import roots, steps_by_row

from eagle_jax import workarounds
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.draft_model import DraftModel
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.shared import Shared
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import DecodeState
from eagle_jax.testing import TINY, synthetic_head3, synthetic_pair

TARGET, HEAD = synthetic_pair(strength=0.3, error=0.15)
HEAD3 = synthetic_head3(TARGET, error=0.1)
SMALL = dataclasses.replace(TARGET, params=jax.tree.map(lambda x: x * 1.05, TARGET.params))
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, TINY.vocab_size, size).tolist() for size in (5, 70, 33, 1)]
PROMPT_LENGTHS = [len(prompt) for prompt in PROMPTS]
SLOTS, CHUNK, NEW = 192, 32, 40


DRAFTERS = {
    "eagle1": Eagle(head=HEAD, policy=EAGLE1_TREE),
    "eagle2": Eagle(head=HEAD, policy=DynamicTree(12, 3, 4)),  # quickly compiled; test_conformance.py has a large one
    "chain": Eagle(head=HEAD, policy=DynamicTree(6, 4, 1)),
    "uncoupled": Eagle(head=HEAD, policy=DynamicTree(12, 3, 4), coupled=False),
    "eagle3": Eagle(head=HEAD3, policy=DynamicTree(12, 3, 4)),
    "draft model": DraftModel(model=SMALL, policy=DynamicTree(6, 4, 1)),
}
SAMPLING = {"greedy": (0.0, 1.0), "T=0.7": (0.7, 1.0), "T=1, top-p 0.9": (1.0, 0.9)}


def ask(prompts, temperature=0.0, top_p=1.0, stop_ids=(-1,), new=NEW, seeds=None):
    drawn = {"temperature": temperature, "top_p": top_p, "seeds": seeds}
    request = params_of(list(map(len, prompts)), new, stop_ids=stop_ids, **drawn)
    mode = sampling.Sampling(sampled=temperature > 0, filtered=temperature > 0 and top_p < 1)
    return request, padded(prompts, SLOTS + 16), mode


def start(drafter, request, tokens, mode) -> DecodeState:
    return compiled_prefill()(TARGET, drafter, request, tokens, mode=mode, slots=SLOTS, chunk=CHUNK, logprobs=True)


def decode(drafter, prompts, until=10**6, **asked) -> tuple[DecodeState, list[list[int]]]:
    request, tokens, mode = ask(prompts, **asked)
    state = compiled_advance()(
        TARGET, drafter, request, start(drafter, request, tokens, mode), jnp.int32(until), mode=mode
    )
    text, length = np.asarray(state.tokens), np.asarray(state.length)
    return state, [text[row, len(p) : length[row] + 1].tolist() for row, p in enumerate(prompts)]


@pytest.mark.matrix
@pytest.mark.parametrize("how", SAMPLING)
def test_a_row_does_not_depend_on_its_batch(how):
    temperature, top_p = SAMPLING[how]
    _, together = decode(DRAFTERS["eagle2"], PROMPTS, temperature=temperature, top_p=top_p)
    for row, prompt in enumerate(PROMPTS[:2]):
        _, alone = decode(DRAFTERS["eagle2"], [prompt], temperature=temperature, top_p=top_p, seeds=[row])
        assert alone == [together[row]]


def test_seeds_differ():
    _, [first] = decode(Plain(), PROMPTS[:1], temperature=1.0, seeds=[0])
    _, [second] = decode(Plain(), PROMPTS[:1], temperature=1.0, seeds=[1])
    assert first != second


def test_coupling_raises_acceptance():
    lengths = {}
    for name in ("eagle2", "uncoupled"):
        state, _ = decode(DRAFTERS[name], PROMPTS, temperature=1.0)
        lengths[name] = float((np.asarray(state.length) - PROMPT_LENGTHS).sum() / steps_by_row(state).sum())
    assert lengths["eagle2"] > 1.1 * lengths["uncoupled"], lengths


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [None, 6])  # of all trees together that are read
@pytest.mark.parametrize("name", ["eagle1", "eagle2", "eagle3", "draft model"])
def test_state_equals_a_fresh_prefill_of_the_committed_text(name, nodes):
    drafter = DRAFTERS[name] if nodes is None else Shared(DRAFTERS[name], nodes)
    request, tokens, mode = ask(PROMPTS, temperature=0.7)
    state = start(drafter, request, tokens, mode)
    for step in range(1, 6):
        state = compiled_advance()(TARGET, drafter, request, state, jnp.int32(step), mode=mode)
        length = np.asarray(state.length)
        text = np.asarray(state.tokens)
        committed = [text[row, : length[row] + 1].tolist() for row in range(len(PROMPTS))]
        # The last known token is the root. A fresh prefill of what lies before it must draw it again.
        again_request, again_tokens, _ = ask([row[:-1] for row in committed], temperature=0.7)
        fresh = start(drafter, again_request, again_tokens, mode)
        np.testing.assert_array_equal(roots(fresh), roots(state))
        assert_same_rows(fresh.cache, state.cache, length)
        assert_same_rows(fresh.draft.cache, state.draft.cache, length)
        now, anew = (x.hidden if name == "draft model" else x.guess for x in (state.draft, fresh.draft))
        np.testing.assert_allclose(anew, now, atol=2e-4, rtol=2e-4)


def assert_same_rows(expected, got, length):
    np.testing.assert_array_equal(expected.length, length)
    np.testing.assert_array_equal(got.length, length)
    for a, b in zip(jax.tree.leaves((expected.k, expected.v)), jax.tree.leaves((got.k, got.v)), strict=True):
        for row, used in enumerate(length):
            np.testing.assert_allclose(a[row, :, :used], b[row, :, :used], atol=2e-4, rtol=2e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["eagle1", "eagle2", "chain"])
def test_stops_at_the_first_of_several_stop_tokens(name):
    _, plain = decode(Plain(), PROMPTS)
    stop_ids = tuple({plain[0][7], plain[1][20]})
    state, cut = decode(DRAFTERS[name], PROMPTS, stop_ids=(*stop_ids, -1))
    for answer, whole, stopped in zip(cut, plain, np.asarray(state.stopped), strict=True):
        ends = [i for i, token in enumerate(whole) if token in stop_ids]
        assert answer == (whole[: ends[0] + 1] if ends else whole)
        assert stopped == bool(ends)


@pytest.mark.parametrize("new", [1, 2, 7])
def test_never_a_token_too_many(new):
    _, plain = decode(Plain(), PROMPTS)
    state, cut = decode(DRAFTERS["eagle2"], PROMPTS, new=new)
    assert cut == [answer[:new] for answer in plain]
    assert not np.asarray(state.stopped).any()


def test_advancing_in_small_steps_is_advancing_at_once():
    request, tokens, mode = ask(PROMPTS, temperature=1.0)
    drafter = DRAFTERS["chain"]
    state = start(drafter, request, tokens, mode)
    while not np.asarray(state.done).all():
        state = compiled_advance()(TARGET, drafter, request, state, state.steps + 1, mode=mode)
    at_once, _ = decode(drafter, PROMPTS, temperature=1.0)
    used = np.asarray(state.length) + 1
    for row in range(len(PROMPTS)):
        for ours, expected in (
            (state.tokens, at_once.tokens),
            (state.committed_at_step, at_once.committed_at_step),
        ):
            np.testing.assert_array_equal(ours[row, : used[row]], expected[row, : used[row]])


def test_logprobs_are_the_targets():
    state, answers = decode(DRAFTERS["eagle2"], PROMPTS[:2], temperature=0.7)
    distribution = jax.jit(lambda target, text: jax.nn.log_softmax(target(text)[1]))
    for row, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=False)):
        whole = distribution(TARGET, jnp.asarray([prompt + answer]))[0]
        expected = whole[np.arange(len(prompt) - 1, len(prompt) + NEW - 1), np.asarray(answer)]
        got = state.logprobs[row, len(prompt) : len(prompt) + NEW]
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_no_retrace_within_a_bucket():
    drafter = DRAFTERS["chain"]
    decode(drafter, PROMPTS)
    compiled = compiled_prefill()._cache_size(), compiled_advance()._cache_size()
    decode(drafter, [prompt[::-1] for prompt in PROMPTS[::-1]], new=9, seeds=[5, 6, 7, 8])
    assert (compiled_prefill()._cache_size(), compiled_advance()._cache_size()) == compiled


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["plain", "eagle1", "eagle2"])
def test_the_loop_holds_no_copy_of_a_cache(name, fused):
    """One cache array more than needed shows as a `copy` of its shape in the compiled loop, and in the temporaries."""
    drafter = Plain() if name == "plain" else DRAFTERS[name]
    request, tokens, mode = ask(PROMPTS)
    state = start(drafter, request, tokens, mode)
    program = compiled_advance().lower(TARGET, drafter, request, state, jnp.int32(9), mode=mode).compile(fused)
    shape = "x".join(map(str, state.cache.k[0].shape)).replace("x", ",")
    copies = [line for line in program.as_text().splitlines() if f"f32[{shape}]" in line and " copy(" in line]
    assert len(copies) == 0, copies
    cache_bytes = sum(x.nbytes for x in jax.tree.leaves((state.cache.k, state.cache.v)))
    donated = program.memory_analysis().alias_size_in_bytes
    assert donated >= cache_bytes


@pytest.mark.parametrize(("name", "passes"), [("plain", 1), ("chain", 2 + DRAFTERS["chain"].policy.depth_steps)])
def test_sines_of_positions_are_made_once_a_pass(name, passes, fused):
    """Fused into what they are multiplied with, they would be made anew in every layer, for queries and for keys."""
    drafter = Plain() if name == "plain" else DRAFTERS[name]
    request, tokens, mode = ask(PROMPTS)
    state = start(drafter, request, tokens, mode)
    program = compiled_advance().lower(TARGET, drafter, request, state, jnp.int32(9), mode=mode).compile(fused)
    assert TARGET.config.num_hidden_layers > 1 and program.as_text().count(" sine(") == passes


def test_gpus_are_asked_for_what_their_xla_has(monkeypatch):
    name = "xla_gpu_experimental_enable_subchannel_dequantisation_fusion"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert workarounds.loop_options() in ({}, {name: True})
    assert workarounds._supported_option("xla_gpu_of_a_version_to_come") == {}
    assert workarounds._supported_option("xla_gpu_enable_triton_gemm") == {"xla_gpu_enable_triton_gemm": True}


@pytest.mark.proof
def test_the_state_is_rebuilt_whole():
    """A field added to the state must be carried by `step` too."""
    request, tokens, mode = ask(PROMPTS[:1])
    state = start(DRAFTERS["chain"], request, tokens, mode)
    assert {field.name for field in dataclasses.fields(state)} == set(DecodeState.__annotations__)
