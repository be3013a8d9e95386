"""Speed, speedup and acceptance of a comparison, per category and overall."""

import dataclasses
from collections.abc import Sequence

from eagle_jax.evaluation.comparison import Answer, Record


@dataclasses.dataclass(frozen=True)
class Summary:
    """One row of the table. Speeds are tokens divided by seconds, both summed over all answers.

    Args:
        category: the questions' category, or "overall".
        questions, answers: how many; a question of two turns has two answers.
        plain_tokens_per_second, eagle_tokens_per_second: whole requests, prefill included.
        speedup: their quotient.
        decode_speedup: the same quotient over decoding alone, prefill left out.
        mean_accepted_length: tokens per pass of the model under EAGLE, over all passes (plain decoding has 1).
        identical: answers with the same token ids under both methods.
        specbench_speedup: Spec-Bench's own figure: quotient of the mean over questions of tokens per second.
    """

    category: str
    questions: int
    answers: int
    plain_tokens_per_second: float
    eagle_tokens_per_second: float
    speedup: float
    decode_speedup: float
    mean_accepted_length: float
    identical: int
    specbench_speedup: float


def summarize(records: Sequence[Record]) -> list[Summary]:
    """A row per category, in order of appearance, and a last one, "overall". Raises ValueError without records."""
    if not records:
        raise ValueError("no question was asked, so there is nothing to summarize")
    categories = dict.fromkeys(record.question.category for record in records)
    rows = [_row(name, [r for r in records if r.question.category == name]) for name in categories]
    return [*rows, _row("overall", list(records))]


def _row(category: str, records: list[Record]) -> Summary:
    plain = [answer for record in records for answer in record.plain]
    eagle = [answer for record in records for answer in record.eagle]
    passes = sum(answer.passes for answer in eagle)
    return Summary(
        category=category,
        questions=len(records),
        answers=len(plain),
        plain_tokens_per_second=_speed(plain),
        eagle_tokens_per_second=_speed(eagle),
        speedup=_ratio(_speed(eagle), _speed(plain)),
        decode_speedup=_ratio(_speed(eagle, "decode_seconds"), _speed(plain, "decode_seconds")),
        mean_accepted_length=_ratio(sum(a.mean_accepted_length * a.passes for a in eagle if a.passes), passes),
        identical=sum(record.identical for record in records),
        specbench_speedup=_ratio(
            sum(_speed(record.eagle) for record in records), sum(_speed(record.plain) for record in records)
        ),
    )


def _speed(answers: Sequence[Answer], clock: str = "seconds") -> float:
    return _ratio(sum(len(answer.token_ids) for answer in answers), sum(getattr(answer, clock) for answer in answers))


def _ratio(a: float | int, b: float | int) -> float:
    """a / b, and 0 where there is nothing to divide by (answers of one token decode in no time)."""
    return a / b if b else 0.0
