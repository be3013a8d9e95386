"""What a look inside the loop shows is what the loop does."""

import pytest
from speller import DYNAMIC, RANDOM, TOKENIZER

from eagle_jax import api

PROMPT = TOKENIZER("spell")["input_ids"]
SAMPLED = {"temperature": 0.8, "seed": 3}


def test_accepted_nodes_and_draws_spell_the_answer():
    answer = api.generate(RANDOM, PROMPT, max_new_tokens=56, **SAMPLED, **DYNAMIC)
    seen = api.trace(RANDOM, PROMPT, cycles=4, **SAMPLED, **DYNAMIC)
    assert len(seen) == 4 and [len(cycle.accepted) for cycle in seen] == answer.stats.accepted_lengths[:4]
    said = [cycle.tokens[node] for cycle in seen for node in cycle.accepted]
    assert [*said, seen[-1].draws[seen[-1].accepted[-1]]] == answer.token_ids[: len(said) + 1]
    for cycle in seen:
        assert len(cycle.tokens) == 8 and cycle.parents[0] == -1 and cycle.accepted[0] == 0
        assert all(cycle.parents[below] == above for above, below in zip(cycle.accepted, cycle.accepted[1:]))


def test_a_trace_ends_with_the_answer():
    cycles = api.trace(RANDOM, list(range(3, 56)), cycles=99, **DYNAMIC)
    assert sum(len(cycle.accepted) for cycle in cycles) == RANDOM.context - 53 - 1


def test_the_closest_draw_is_the_token_that_came():
    answer = api.generate(RANDOM, PROMPT, max_new_tokens=6, **SAMPLED, **DYNAMIC)
    for place, token in enumerate(answer.token_ids):
        (best, high), (other, low) = api.closest_draws(RANDOM, PROMPT + answer.token_ids[:place], **SAMPLED)
        assert best == token != other and high >= low


def test_parts_of_a_cycle():
    parts = api.time_parts(RANDOM, PROMPT, repeats=2, **DYNAMIC)
    assert parts.draft > 0 and parts.verify > 0 and parts.cycle > 0
    assert parts.rest == max(parts.cycle - parts.draft - parts.verify, 0.0)


def test_shapes_are_those_of_the_drafters():
    assert api.tree_shape(RANDOM, "none") == api.tree_shape(RANDOM, "none", "eagle1")
    assert (api.tree_shape(RANDOM, "eagle", (8, 2, 2)).nodes, api.tree_shape(RANDOM, "eagle", "eagle1").depth) == (8, 5)
    with pytest.raises(ValueError, match="is not known"):
        api.tree_shape(RANDOM, "magic")
