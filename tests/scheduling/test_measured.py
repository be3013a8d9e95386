"""The fastest drafter is found while requests are answered, left when it is no longer, and found again."""

import dataclasses

import pytest
from speller import RANDOM

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.shared import Shared
from eagle_jax.methods.budgets import Budget, budget_for, save, tree_of
from eagle_jax.methods.choice import SMALLEST_TREE, choose, default_tree
from eagle_jax.scheduling.by_load import ByLoad, by_load
from eagle_jax.scheduling.measured import (
    COST_OF_TRIALS,
    FIRST_TRIALS,
    MAX_TRIAL_INTERVAL,
    MIN_TRIAL_INTERVAL,
    Contest,
    Measured,
)

PLAIN, TREE, SMALL = Plain(), PromptLookup(copied=5), PromptLookup(copied=1)


def played(contest: Contest, speeds: list[float], runs: int) -> list[int]:
    """What ran, where each drafter makes so many tokens a second in runs of four steps."""
    ran = []
    for _ in range(runs):
        index = contest.choose()
        contest.add(index, steps=4, tokens=8, requests=2, seconds=4 / speeds[index])
        ran.append(index)
    return ran


@pytest.mark.parametrize("speeds", [[50.0, 100.0, 75.0], [100.0, 60.0, 30.0], [20.0, 30.0, 90.0]])
def test_the_fastest_runs_nearly_always(speeds):
    contest, best = Contest([TREE, SMALL, PLAIN]), speeds.index(max(speeds))
    first = played(contest, speeds, 3 * FIRST_TRIALS)
    assert sorted(first) == sorted(FIRST_TRIALS * [0, 1, 2]), "each is tried"
    ran = played(contest, speeds, 3 * MAX_TRIAL_INTERVAL)
    share = ran.count(best) / len(ran)
    assert share > 0.95 and set(ran) == {0, 1, 2}, "the others are tried now and then"
    took = sum(1 / speeds[index] for index in ran) / (len(ran) / max(speeds))
    assert took < 1 + 2.5 * COST_OF_TRIALS, "which costs next to nothing"


def test_another_text_or_load_is_noticed():
    contest = Contest([TREE, PLAIN])
    played(contest, [120.0, 100.0], 300)
    assert contest.choose() == 0
    ran = played(contest, [60.0, 100.0], 60)
    assert ran[-20:].count(1) > 15, "drafting that has become slower is left"
    back = played(contest, [150.0, 100.0], 2 * MAX_TRIAL_INTERVAL)
    assert back[-20:].count(0) > 15, "and taken up again"


@pytest.mark.parametrize(
    "speed, runs", [(95.0, MIN_TRIAL_INTERVAL), (50.0, 1 / COST_OF_TRIALS), (1.0, MAX_TRIAL_INTERVAL)]
)
def test_what_loses_by_far_is_tried_less_often(speed, runs):
    contest = Contest([TREE, PLAIN])
    played(contest, [speed, 100.0], 2 * FIRST_TRIALS)
    ran = played(contest, [speed, 100.0], 4 * MAX_TRIAL_INTERVAL)
    tried = [at for at in range(len(ran)) if ran[at] == 0]
    gaps = [later - at for at, later in zip(tried, tried[1:], strict=False)]
    assert all(gap == pytest.approx(runs + 1, rel=0.05) for gap in gaps)


def test_a_single_drafter_has_no_trials_and_runs_without_steps_count_for_nothing():
    contest = Contest([TREE])
    assert played(contest, [10.0], 100) == [0] * 100
    contest.add(0, steps=0, tokens=0, requests=1, seconds=1.0)
    assert contest.spent[0].runs == 100


def test_what_fails_is_not_chosen_for_ever():
    contest = Contest([TREE, PLAIN])
    assert [contest.choose() for _ in range(FIRST_TRIALS)] == FIRST_TRIALS * [0], "and nothing is reported: it failed"
    assert played(contest, [1.0, 100.0], 100) == [1] * 100


def test_each_number_of_rows_has_its_own():
    measured = Measured(ByLoad(((1, TREE), (1, PLAIN), (4, PLAIN))))
    assert measured.choose(1) == (1, 0, TREE) and measured.choose(3) == (4, 0, PLAIN) and measured.choose(9)[0] == 4
    assert measured.spent() == []
    measured.contests[1].add(0, steps=4, tokens=9, requests=1, seconds=2.0)
    [(rows, spent)] = measured.spent()
    assert (rows, spent.nodes, spent.steps, spent.tokens, spent.seconds) == (1, TREE.shape.nodes, 4, 9, 2.0)


@pytest.fixture(autouse=True)
def no_findings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def findings(speeds: list[float], runs: int, tree: str = "auto") -> list[Budget]:
    """What is found for one row where the default tree, the smallest and plain decoding have these speeds."""
    choice = choose(RANDOM, "auto", tree)
    measured = Measured(by_load(choice, 1, steps=4))
    [contest] = measured.contests.values()
    played(contest, speeds[: len(contest.drafters)], runs)
    return measured.findings(choice, slots=256)


def test_what_was_fastest_is_found_by_the_next():
    default = default_tree(RANDOM, "eagle", 1)
    assert findings([100.0, 60.0, 30.0], runs=3 * FIRST_TRIALS) == [], "not known yet"
    assert findings([100.0], 500, tree="published") == [], "a tree that was asked for"
    for speeds, best in (
        ([100.0, 60.0, 30.0], default),
        ([50.0, 100.0, 30.0], SMALLEST_TREE),
        ([30.0, 50.0, 100.0], None),
    ):
        [found] = findings(speeds, 3000)
        assert tree_of(found) == best and found.by == "engine"
        assert found.speed / found.plain == pytest.approx(max(speeds) / speeds[-1], rel=1e-3)
        save([found])
        entries = by_load(choose(RANDOM, "auto", "auto"), 1, steps=4).entries
        assert entries[0][1].shape.nodes == (best.nodes if best else 1), "the next begins with it"
        assert {one.shape.nodes for _, one in entries} == {default.nodes, SMALLEST_TREE.nodes, 1}, (
            "and has the others too"
        )


def test_a_tree_that_gains_next_to_nothing_is_not_kept():
    [found] = findings([101.0, 60.0, 100.0], 3000)
    assert found.tree is None and found.speed == found.plain


def test_trees_that_share_the_nodes_of_a_step_are_not_kept():
    shared = Shared(Eagle(RANDOM.head, DynamicTree(8, 2, 3)), 16)
    measured = Measured(ByLoad(((4, shared), (4, PLAIN))))
    played(measured.contests[4], [100.0, 50.0], 3000)
    assert measured.findings(choose(RANDOM, "auto", "auto"), slots=256) == []


def test_what_tune_found_counts_before_what_an_engine_found():
    [found] = findings([30.0, 50.0, 100.0], 3000)
    measured = dataclasses.replace(found, by="tune", tree=(4, 2, 1), rows=4)
    save([dataclasses.replace(found, rows=16)])
    assert budget_for(RANDOM, "eagle", 1, 256) is None, "it says nothing of fewer requests"
    save([found])
    assert budget_for(RANDOM, "eagle", 1, 4096) == found
    save([measured])
    assert budget_for(RANDOM, "eagle", 1, 256) == measured
    save([found])
    assert budget_for(RANDOM, "eagle", 1, 256) == measured
