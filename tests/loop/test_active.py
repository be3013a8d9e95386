"""Steps for some rows of a batch: what they do is what they do alone, and the others stay as they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from states import roots
from test_decode import DRAFTERS, PROMPTS, TARGET, ask, assert_same_rows, start

from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.drafters.shared import Shared
from eagle_jax.loop.active import state_at
from eagle_jax.loop.catch_up import compiled_catch_up
from eagle_jax.loop.decode import compiled_advance

ALL = jnp.arange(len(PROMPTS), dtype=jnp.int32)
ROWS = jnp.array([3, 1], jnp.int32)


def test_the_others_stay_as_they_are():
    drafter = DRAFTERS["eagle3"]
    request, tokens, mode = ask(PROMPTS)
    before, kept = (start(drafter, request, tokens, mode) for _ in "ab")  # one of them is donated
    after = compiled_advance()(TARGET, drafter, request, before, jnp.int32(4), jnp.int32(2), ROWS, mode=mode)
    leaves = (jax.tree.leaves((state.tokens, state.cache, state.draft)) for state in (kept, after))
    for old, new in zip(*leaves, strict=True):
        np.testing.assert_array_equal(old[jnp.array([0, 2])], new[jnp.array([0, 2])])
    assert (np.asarray(after.length) > np.asarray(kept.length)).tolist() == [False, True, False, True]
    assert int(after.steps) == 4


def test_it_ends_when_enough_of_them_are_done():
    request, tokens, mode = ask(PROMPTS)
    state = start(Plain(), request, tokens, mode)
    request = dataclasses.replace(request, limit=request.limit - jnp.array([0, 0, 0, 20], jnp.int32))  # row 3 is first
    state = compiled_advance()(TARGET, Plain(), request, state, jnp.int32(10**6), jnp.int32(1), ROWS, mode=mode)
    assert np.asarray(state.done).tolist() == [False, False, False, True]
    assert int(state.length[1]) == int(state.length[3]) - len(PROMPTS[3]) + len(PROMPTS[1])


@pytest.mark.proof
def test_the_state_is_that_of_a_fresh_prefill_whoever_took_part():
    """With drafts and without, and with few nodes for both: a head that was paused knows the text as if it had drafted
    all the time.
    """
    drafter, paused = Ready(DRAFTERS["eagle3"], 4), Paused(DRAFTERS["eagle3"], 4)
    sharing = Ready(Shared(DRAFTERS["eagle3"], 5), 4)
    turns = [drafter, paused, paused, sharing, paused, drafter, paused]
    request, tokens, mode = ask(PROMPTS, temperature=0.7)
    state, rng = start(drafter, request, tokens, mode), np.random.default_rng(0)
    for step, chosen in zip(range(2, 15, 2), turns, strict=True):
        if chosen is not paused:
            state = compiled_catch_up()(TARGET, drafter, state, ALL)
        rows = jnp.asarray(rng.permutation(len(PROMPTS))[:2], jnp.int32)
        state = compiled_advance()(TARGET, chosen, request, state, jnp.int32(step), jnp.int32(2), rows, mode=mode)
    assert np.asarray(state.draft.count).any()
    state = compiled_catch_up()(TARGET, drafter, state, ALL)
    text, length = np.asarray(state.tokens), np.asarray(state.length)
    assert (length > [len(prompt) for prompt in PROMPTS]).all()
    again_request, again_tokens, _ = ask(
        [row[:count].tolist() for row, count in zip(text, length, strict=True)], temperature=0.7
    )
    fresh = start(drafter, again_request, again_tokens, mode)
    np.testing.assert_array_equal(roots(fresh), roots(state))
    assert_same_rows(fresh.cache, state.cache, length)
    assert_same_rows(fresh.draft.state.cache, state.draft.state.cache, length)
    np.testing.assert_allclose(fresh.draft.state.guess, state.draft.state.guess, atol=2e-4, rtol=2e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["eagle3", "draft model"])
def test_nothing_to_read_changes_nothing_that_is_read(name):
    """The slot of the root included, which a draft model has beyond the committed tokens."""
    drafter = Ready(DRAFTERS[name], 4)
    request, tokens, mode = ask(PROMPTS)
    before, kept = (start(drafter, request, tokens, mode) for _ in "ab")
    after = compiled_catch_up()(TARGET, drafter, before, ALL)
    for old, new in zip(*(jax.tree.leaves(state.draft.state) for state in (kept, after)), strict=True):
        for row, length in enumerate(np.asarray(kept.length)):
            read = (row, slice(None), slice(length + 1)) if old.ndim == 4 else row
            np.testing.assert_array_equal(old[read], new[read])


def test_no_cache_is_copied(fused):
    """Neither as a whole nor the rows that take part: a copy shows among the temporaries."""
    drafter = DRAFTERS["chain"]
    request, tokens, mode = ask(PROMPTS)
    state = start(drafter, request, tokens, mode)
    inputs = TARGET, drafter, request, state, jnp.int32(9), jnp.int32(2), ROWS
    program = compiled_advance().lower(*inputs, mode=mode).compile(fused)
    shape = ",".join(map(str, state.cache.k[0].shape))
    copies = [line for line in program.as_text().splitlines() if f"f32[{shape}]" in line and " copy(" in line]
    assert len(copies) == 0, copies
    cache_bytes = sum(x.nbytes for x in jax.tree.leaves((state.cache.k, state.cache.v)))
    assert program.memory_analysis().alias_size_in_bytes >= cache_bytes


def test_some_rows_of_some_rows():
    request, tokens, mode = ask(PROMPTS)
    state = state_at(state_at(start(Plain(), request, tokens, mode), ROWS), jnp.array([1], jnp.int32))
    assert state.cache.rows.tolist() == [1] and state.length.tolist() == [len(PROMPTS[1])]
    assert state.cache.k[0].shape[0] == len(PROMPTS)
