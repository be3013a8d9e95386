import math

import pytest
from talks import answer, conversation, plain

from eagle_jax.evaluation import by_group, divergence, figures
from eagle_jax.evaluation.answers import to_record
from eagle_jax.evaluation.metrics import specbench, task

FAST = [
    conversation(81, "writing", "eagle", answer(3, 3, 1, seconds=2.0), answer(2, 1, seconds=1.0)),
    conversation(161, "translation", "eagle", answer(1, 4, 4, seconds=0.5, first=50)),
    conversation(401, "math_reasoning", "eagle", answer(2, 2, seconds=1.0)),
]
SLOW = [
    conversation(talk.id, talk.category, "plain", *plain(*talk.answers, seconds=3.0 + number))
    for number, talk in enumerate(FAST)
]


def test_speeds_are_totals_over_totals():
    row = figures(FAST, SLOW)
    assert (row.questions, row.answers, row.tokens, row.steps) == (3, 4, 8 + 4 + 10 + 5, 10)
    assert row.tokens_per_second == pytest.approx(27 / 4.5)
    assert row.speedup == pytest.approx((27 / 4.5) / (27 / (3 + 3 + 4 + 5)))
    assert row.decode_tokens_per_second == pytest.approx(23 / (0.75 * 4.5))
    assert row.decode_speedup == pytest.approx(15 / 4.5)
    assert row.seconds_to_first_token == pytest.approx(4.5 / 4 / 4)


def test_acceptance_comes_from_the_passes():
    row = figures(FAST, SLOW)
    assert row.mean_accepted_length == pytest.approx(23 / 10)
    assert row.lengths == (3, 3, 2, 2)
    assert row.accepted_by_depth == pytest.approx((7 / 10, 4 / 10, 2 / 10))
    assert row.mean_accepted_length == pytest.approx(1 + sum(row.accepted_by_depth))
    # without the last step of each answer 3, 3, 2, 1, 4, 2 remain
    assert row.alpha == pytest.approx((5 / 6, 3 / 5, 1 / 3))
    assert figures(SLOW, SLOW).accepted_by_depth == () and figures(SLOW, SLOW).alpha == ()


def test_identical_answers_are_counted_by_token_ids():
    assert figures(FAST, SLOW).identical == 4
    other = conversation(401, "math_reasoning", "eagle", answer(2, 2, first=1))
    assert figures([*FAST[:2], other], SLOW).identical == 3
    assert figures(FAST[:1], None).identical == 0 and math.isnan(figures(FAST, None).speedup)


def test_answers_of_one_token_have_no_passes():
    row = figures([conversation(1, "a", "eagle", answer())], None)
    assert row.steps == 0 and math.isnan(row.mean_accepted_length) and row.lengths == ()


def test_groups_are_spec_benchs_tasks_or_the_categories():
    talks = {"plain": SLOW, "eagle": FAST}
    assert list(by_group(talks, "plain", tasks=True)) == ["mt_bench", "translation", "math_reasoning", "overall"]
    groups = by_group(talks, "plain", tasks=False)
    assert list(groups) == ["writing", "translation", "math_reasoning", "overall"]
    assert groups["overall"]["eagle"] == figures(FAST, SLOW)
    assert groups["translation"]["eagle"].speedup == pytest.approx(4.0 / 0.5)
    assert task("humanities") == "mt_bench" and task("math_reasoning") == "math_reasoning"


def test_spec_benchs_own_figures():
    """Recomputed from the lines alone, as its `speed.py` does; the baseline's texts are tokenized at their blanks."""
    fast, slow = ([to_record(talk) for talk in talks] for talks in (FAST, SLOW))
    speeds = [sum(q["choices"][0]["new_tokens"]) / sum(q["choices"][0]["wall_time"]) for q in fast]
    baseline = [
        sum(len(text.split()) - 1 for text in q["choices"][0]["turns"]) / sum(q["choices"][0]["wall_time"])
        for q in slow
    ]
    lengths = [length for q in fast for length in q["choices"][0]["accept_lengths"]]
    ours = specbench(FAST, SLOW)
    assert ours.tokens_per_second == pytest.approx(sum(speeds) / len(speeds))
    assert ours.baseline_tokens_per_second == pytest.approx(sum(baseline) / len(baseline))
    assert ours.speedup == pytest.approx(sum(speeds) / sum(baseline))
    assert ours.mean_accepted_tokens == pytest.approx(sum(lengths) / len(lengths))


def test_where_texts_part():
    one = conversation(1, "a", "x", answer(1), answer(1, 1))
    assert divergence(one, one) is None
    assert divergence(one, conversation(1, "a", "y", answer(1), answer(1))) == (1, 2)
    assert divergence(one, conversation(1, "a", "y", answer(1, first=3), answer(1))) == (0, 0)
    assert divergence(one, conversation(1, "a", "y", answer(1))) is None
