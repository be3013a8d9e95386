"""The arithmetic of the cost model, on costs that were made up."""

import math

import pytest

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.tuning.tree_costs import Costs, Estimate, between, candidates, ranked

CHAINS = [DynamicTree(steps + 2, steps, 1) for steps in range(7)]
# each guess is right four times in five
LENGTHS = {tree: sum(0.8**depth for depth in range(tree.depth + 1)) for tree in CHAINS}
FREE = ((1, 0.0), (10, 0.0))


def best(row: float, draft: float) -> Estimate:
    """The best of the chains when a row more costs `row`, and a draft level `draft`, of a plain step."""
    steps = tuple((nodes, 1.0 + row * (nodes - 1)) for nodes in (1, 4, 16, 64))
    return ranked(Costs(verify_steps=steps, begin=((1, draft),), level=((1, draft),)), LENGTHS)[0]


def nodes(estimate: Estimate) -> int:
    return 1 if estimate.tree is None else estimate.tree.nodes


def test_dearer_verification_has_no_larger_tree():
    sizes = [nodes(best(row, 0.0)) for row in (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 8 and sizes[-1] == 1 and len(set(sizes)) > 4


def test_dearer_drafting_has_no_larger_tree():
    sizes = [nodes(best(0.05, draft)) for draft in (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1] == 1


def test_plain_decoding_wins_where_every_tree_loses():
    lost = best(0.0, 5.0)
    assert lost == Estimate(None, 1.0, 1.0) and lost.tokens_per_second == 1.0


def test_of_equally_fast_ones_the_smaller_is_first():
    costs = Costs(verify_steps=((1, 1.0), (9, 1.0)), begin=FREE, level=FREE)
    alike = {DynamicTree(n, 1, 2): 1.0 for n in (5, 3)}
    assert [nodes(one) for one in ranked(costs, alike)] == [1, 3, 5]


def test_between_what_was_measured():
    times = ((1, 2.0), (4, 5.0), (8, 3.0))
    assert [between(times, size) for size in (1, 2, 4, 6, 8, 9)] == [2.0, 3.0, 5.0, 5.0, 5.0, math.inf]
    assert between(times, 0) == 2.0


def test_a_step_is_its_parts():
    costs = Costs(verify_steps=((1, 1.0), (5, 2.0)), begin=((1, 0.1), (3, 0.3)), level=((1, 0.2), (3, 0.4)))
    assert costs.plain == 1.0
    assert costs.step(DynamicTree(5, 2, 2)) == pytest.approx(2.0 + 0.2 + 2 * 0.3)
    assert costs.step(DynamicTree(6, 2, 2)) == math.inf, "nobody knows what six nodes cost"


def test_candidates_can_be_grown_and_use_what_they_draft():
    largest = DynamicTree(20, 4, 4)
    found = list(candidates(largest, (1, 2, 4, 8)))
    assert len(found) == len(set(found)) > 20 and DynamicTree(6, 4, 1) in found and largest in found
    for tree in found:
        assert tree.nodes <= 20 and tree.depth_steps <= 4 and tree.top_k <= 4 and tree.nodes > tree.depth
