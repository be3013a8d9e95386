"""What steps were spent on, by the size of their trees: for one answer, and over an engine that changes its mind."""

import pytest
from speller import DYNAMIC, RANDOM, SPELLER, asked

from eagle_jax.api import BudgetUse, Engine, generate, sum_spent


def test_parts_are_summed_by_size():
    parts = [BudgetUse(8, 1, 3, 0.5), BudgetUse(1, 4, 4, 1.0), BudgetUse(8, 2, 2, 0.25)]
    assert sum_spent(parts) == [BudgetUse(1, 4, 4, 1.0), BudgetUse(8, 3, 5, 0.75)]
    assert sum_spent([]) == []


@pytest.mark.parametrize("how, nodes", [(DYNAMIC, 8), ({"drafter": "none"}, 1)])
def test_an_answer_tells_its_steps(how, nodes):
    results = generate(RANDOM, [[1, 2, 3], [4]], max_new_tokens=20, **how)
    for result in results:
        (spent,) = result.stats.spent
        assert (spent.nodes, spent.steps, spent.tokens) == (nodes, result.stats.steps, len(result.token_ids) - 1)
        assert spent.seconds == pytest.approx(result.stats.decode_seconds)


def test_a_stop_string_cuts_the_last_step():
    result = generate(SPELLER, asked("two"), max_new_tokens=20, stop="e", **DYNAMIC)
    (spent,) = result.stats.spent
    assert spent.steps == result.stats.steps and spent.tokens == sum(result.stats.accepted_lengths)


@pytest.mark.proof
def test_an_engine_that_tries_several_sizes_tells_all_of_them():
    with Engine(RANDOM, rows=2, max_tokens=128, steps=1) as engine:
        sizes = {drafter.shape.nodes for rows, drafter in engine.by_load.entries if rows == 1}
        ticket = engine.submit([1, 2, 3], max_new_tokens=50)
        result = ticket.result()
    assert len(sizes) > 1 and {one.nodes for one in result.stats.spent} == sizes
    assert sum(one.tokens for one in result.stats.spent) == len(result.token_ids) - 1
    assert sum(one.steps for one in result.stats.spent) == result.stats.steps
