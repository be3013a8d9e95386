import pytest

from eagle_jax.evaluation import Answer, Question, Record, summarize


def answer(tokens: int, passes: int, seconds: float, decode_seconds: float, first: int = 0) -> Answer:
    return Answer(
        text="x",
        token_ids=tuple(range(first, first + tokens)),
        passes=passes,
        mean_accepted_length=tokens / passes if passes else float("nan"),
        seconds=seconds,
        decode_seconds=decode_seconds,
    )


def record(id: int, category: str, plain: Answer, eagle: Answer) -> Record:
    return Record(Question(id, category, ("?",)), (plain,), (eagle,))


RECORDS = [
    record(1, "math", answer(100, 100, 1.0, 0.8), answer(100, 25, 0.5, 0.2)),
    record(2, "math", answer(20, 20, 0.5, 0.4), answer(20, 5, 0.5, 0.4, first=1)),
    record(3, "qa", answer(30, 30, 0.3, 0.3), answer(30, 30, 0.3, 0.3)),
]


def test_speeds_are_totals_over_totals():
    math, qa, overall = summarize(RECORDS)
    assert (math.category, qa.category, overall.category) == ("math", "qa", "overall")
    assert (math.questions, math.answers, overall.questions) == (2, 2, 3)
    assert math.plain_tokens_per_second == pytest.approx(120 / 1.5)
    assert math.eagle_tokens_per_second == pytest.approx(120 / 1.0)
    assert math.speedup == pytest.approx(1.5)
    assert math.decode_speedup == pytest.approx(1.2 / 0.6)
    assert overall.speedup == pytest.approx((150 / 1.3) / (150 / 1.8))


def test_acceptance_is_weighted_by_passes():
    math, qa, overall = summarize(RECORDS)
    assert math.mean_accepted_length == pytest.approx(120 / 30)
    assert overall.mean_accepted_length == pytest.approx(150 / 60)


def test_identity_is_of_token_ids():
    math, qa, overall = summarize(RECORDS)
    assert (math.identical, qa.identical, overall.identical) == (1, 1, 2)


def test_spec_benchs_speedup_is_of_means_over_questions():
    math, _, _ = summarize(RECORDS)
    assert math.specbench_speedup == pytest.approx((200 + 40) / (100 + 40))


def test_answers_that_decoded_nothing():
    (row, _) = summarize([record(1, "a", answer(1, 0, 0.1, 0.0), answer(1, 0, 0.1, 0.0))])
    assert row.decode_speedup == row.mean_accepted_length == 0.0 and row.speedup == 1.0


def test_nothing_to_summarize():
    with pytest.raises(ValueError, match="no question was asked"):
        summarize([])
