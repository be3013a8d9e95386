"""`warm_up`: after it requests of its sizes compile nothing, and before it nothing of theirs was there."""

import dataclasses

import pytest
from speller import DYNAMIC, RANDOM

from eagle_jax.api import generate, stream, warm_up
from eagle_jax.scheduling import programs

# Programs depend on how many stop tokens there are, so these are no other test's. In EAGER every token is one.
STOPS = RANDOM.target.config.vocab_size
EAGER = dataclasses.replace(RANDOM, stop_ids=tuple(range(STOPS)))
STAYING = dataclasses.replace(RANDOM, stop_ids=(STOPS,) * STOPS)


def test_afterwards_nothing_is_compiled():
    sizes = {"prompt_lengths": range(1, 6), "max_new_tokens": 8, "batch_size": 2}
    before = programs.compiled()
    greedy, sampled = warm_up(EAGER, **sizes, temperature=(0.0, 0.8), drafter="none")
    # the prompts of two rows, the loop, the prompt of one row, and its way into the batch, which drawing is nothing to
    assert [greedy.programs, sampled.programs] == [4, 3] and programs.compiled() == before + 7
    assert (greedy.batch_size, greedy.slots, greedy.nodes) == (2, 128, 1)
    assert (greedy.sampled, sampled.sampled) == (False, True) and min(greedy.seconds, sampled.seconds) > 0

    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    for temperature in (0.0, 1.1):
        asked = {"max_new_tokens": 8, "temperature": temperature, "drafter": "none"}
        results = generate(STAYING, prompts, batch_size=2, **asked)
        assert [len(result.token_ids) for result in results] == [8, 8, 8]
        assert [result.stats.compile_seconds for result in results] == [0.0] * 3
        assert len([chunk for chunk in stream(STAYING, prompts[:2], **asked) if chunk.result]) == 2
    assert programs.compiled() == before + 7

    again = warm_up(EAGER, **sizes, drafter="none")
    assert [(one.programs, one.seconds) for one in again] == [(0, 0.0)]


@pytest.mark.matrix
@pytest.mark.parametrize("recorded", [{}, {"top_logprobs": 2}])
def test_trees_and_what_is_recorded_are_warmed_up_too(recorded):
    [ready] = warm_up(EAGER, prompt_lengths=3, max_new_tokens=8, **recorded, **DYNAMIC)
    assert ready.nodes == 8
    assert generate(STAYING, [1, 2, 3], max_new_tokens=8, **recorded, **DYNAMIC).stats.compile_seconds == 0


@pytest.mark.parametrize("lengths", [0, -1, 1.5, RANDOM.context, [3, True]])
def test_lengths_that_no_prompt_has(api, lengths):
    with pytest.raises(ValueError, match="expected a whole number from 1 to 55"):
        api.warm_up(RANDOM, prompt_lengths=lengths)


def test_other_values_are_checked_as_generate_does(api):
    with pytest.raises(ValueError, match="temperature=-1"):
        api.warm_up(RANDOM, prompt_lengths=3, temperature=-1)
    with pytest.raises(ValueError, match="batch_size=0"):
        api.warm_up(RANDOM, batch_size=[1, 0])
    with pytest.raises(ValueError, match="drafter='nobody'"):
        api.warm_up(RANDOM, prompt_lengths=3, drafter="nobody")
