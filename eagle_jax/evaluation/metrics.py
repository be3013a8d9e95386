"""Figures of speed and acceptance, and the same as Spec-Bench computes them.

Spec-Bench's figures (`evaluation/speed.py` of hemingkx/Spec-Bench) are comparable with its leaderboard, but biased: the
baseline's tokens are counted by tokenizing its text again, minus one for a BOS token that not every tokenizer has,
while a method's tokens are those generated; speeds are averaged over questions, so that short answers weigh as much as
long ones; and all speeds include prefill.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from eagle_jax import api
from eagle_jax.evaluation.answers import Answer, Conversation

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
OVERALL = "overall"
MIN_REPETITIVE_TOKENS = 32  # shorter answers are never called repetitive


@dataclasses.dataclass(frozen=True)
class SpecBench:
    """Spec-Bench's four figures.

    Attributes:
        mean_accepted_tokens: mean number of tokens committed per step.
        tokens_per_second: mean over questions of generated tokens per second, with prefill.
        baseline_tokens_per_second: the same for plain decoding, with tokens counted as described above.
        speedup: the quotient of both speeds.
    """

    mean_accepted_tokens: float
    tokens_per_second: float
    baseline_tokens_per_second: float
    speedup: float


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of one method on a group of questions. Speeds are total tokens over total seconds.

    Comparisons with plain decoding are nan without that method, and so are quotients by zero.

    Attributes:
        questions, answers, tokens, steps: numbers of these; a question of two turns has two answers.
        tokens_per_second: speed of whole requests, with prefill.
        decode_tokens_per_second: speed after the first token.
        seconds_to_first_token: mean over the answers.
        speedup, decode_speedup: these speeds relative to plain decoding.
        mean_accepted_length: tokens committed per step, with the bonus token.
        accepted_by_depth: share of the steps that committed the drafted token at depth 1, 2, ...
        alpha: share of the steps that committed depth n among those that committed depth n - 1 (n-alpha of a chain),
            without the last step of each answer, which the end of the answer truncates.
        lengths: number of steps that committed 1, 2, ... tokens.
        identical: number of answers with the same token ids as plain decoding's.
        distinct_bigrams: share of token bigrams that are new in their answer; repetitive text has few, and is easy to
            draft.
        repetitive: number of answers of at least `MIN_REPETITIVE_TOKENS` tokens with less than half of bigrams new.
        specbench: the figures as Spec-Bench computes them.
        spent: steps, tokens and seconds by tree size.
    """

    questions: int
    answers: int
    tokens: int
    steps: int
    tokens_per_second: float
    decode_tokens_per_second: float
    seconds_to_first_token: float
    speedup: float
    decode_speedup: float
    mean_accepted_length: float
    accepted_by_depth: tuple[float, ...]
    alpha: tuple[float, ...]
    lengths: tuple[int, ...]
    identical: int
    distinct_bigrams: float
    repetitive: int
    specbench: SpecBench
    spent: tuple[api.BudgetUse, ...] = ()


def task(category: str) -> str:
    """Returns Spec-Bench's task of a category; the eight of MT-bench are one task."""
    return "mt_bench" if category in MT_BENCH else category


def figures(conversations: Sequence[Conversation], plain: Sequence[Conversation] | None) -> Figures:
    """Computes the figures of one method's conversations, compared with plain decoding on the same questions."""
    answers = list(_answers(conversations))
    plain_answers = None if plain is None else list(_answers(plain))
    lengths = [length for answer in answers for length in answer.accepted_lengths]
    deepest = max(lengths, default=0)
    num_reached = [sum(length > depth for length in lengths) for depth in range(deepest)]
    lengths_before_last = [length for answer in answers for length in answer.accepted_lengths[:-1]]
    num_tried = [sum(length > depth for length in lengths_before_last) for depth in range(deepest)]
    speed, decode_speed = _speed(answers), _decode_speed(answers)
    pairs = [list(itertools.pairwise(answer.token_ids)) for answer in answers]
    return Figures(
        questions=len(conversations),
        answers=len(answers),
        tokens=sum(len(answer.token_ids) for answer in answers),
        steps=len(lengths),
        tokens_per_second=speed,
        decode_tokens_per_second=decode_speed,
        seconds_to_first_token=_ratio(sum(answer.prefill_seconds for answer in answers), len(answers)),
        speedup=_ratio(speed, _speed(plain_answers)),
        decode_speedup=_ratio(decode_speed, _decode_speed(plain_answers)),
        mean_accepted_length=_ratio(sum(lengths), len(lengths)),
        accepted_by_depth=tuple(_ratio(count, len(lengths)) for count in num_reached[1:]),
        alpha=tuple(_ratio(deeper, above) for above, deeper in itertools.pairwise(num_tried) if above),
        lengths=tuple(lengths.count(length) for length in range(1, deepest + 1)),
        identical=_identical(conversations, plain or ()),
        distinct_bigrams=_ratio(sum(len(set(bigrams)) for bigrams in pairs), sum(map(len, pairs))),
        repetitive=sum(
            len(bigrams) >= MIN_REPETITIVE_TOKENS - 1 and 2 * len(set(bigrams)) < len(bigrams) for bigrams in pairs
        ),
        specbench=specbench(conversations, plain or ()),
        spent=tuple(api.sum_spent(bigrams for answer in answers for bigrams in answer.spent)),
    )


def by_group(
    conversations: Mapping[str, Sequence[Conversation]], plain: str | None, *, tasks: bool
) -> dict[str, dict[str, Figures]]:
    """Computes the figures of every method, by group of questions in order of appearance, and last "overall".

    Args:
        conversations: conversations by method, with the same questions for each.
        plain: name of the method that is plain decoding; None if there is none.
        tasks: whether to group by Spec-Bench's tasks instead of categories.
    """

    def of(group: str, method: str) -> list[Conversation]:
        return [conversation for conversation in conversations[method] if group in (name(conversation), OVERALL)]

    def name(conversation: Conversation) -> str:
        return task(conversation.category) if tasks else conversation.category

    groups = dict.fromkeys(name(conversation) for talks in conversations.values() for conversation in talks)
    return {
        group: {m: figures(of(group, m), None if plain is None else of(group, plain)) for m in conversations}
        for group in (*groups, OVERALL)
    }


def specbench(conversations: Sequence[Conversation], plain: Sequence[Conversation]) -> SpecBench:
    """Computes the figures as Spec-Bench does."""
    lengths = [length for answer in _answers(conversations) for length in answer.accepted_lengths]
    speed = _mean(
        _tokens_per_second(conversation, sum(len(answer.token_ids) for answer in conversation.answers))
        for conversation in conversations
    )
    baseline = _mean(
        _tokens_per_second(conversation, sum(answer.retokenized - 1 for answer in conversation.answers))
        for conversation in plain
    )
    return SpecBench(_mean(lengths), speed, baseline, _ratio(speed, baseline))


def divergence(a: Conversation, b: Conversation) -> tuple[int, int] | None:
    """Returns the first difference of two conversations, (turn, token) from 0; None if their common turns are equal."""
    for turn, (first, second) in enumerate(zip(a.answers, b.answers, strict=False)):
        if first.token_ids != second.token_ids:
            pairs = itertools.zip_longest(first.token_ids, second.token_ids)
            return turn, next(token for token, (x, y) in enumerate(pairs) if x != y)
    return None


def _identical(conversations: Sequence[Conversation], plain: Sequence[Conversation]) -> int:
    by_id = {conversation.id: conversation.answers for conversation in plain}
    pairs = ((conversation.answers, by_id.get(conversation.id, ())) for conversation in conversations)
    return sum(a.token_ids == b.token_ids for own, base in pairs for a, b in zip(own, base, strict=False))


def _answers(conversations: Iterable[Conversation]) -> Iterable[Answer]:
    return (answer for conversation in conversations for answer in conversation.answers)


def _tokens_per_second(conversation: Conversation, tokens: int) -> float:
    return _ratio(tokens, sum(answer.seconds for answer in conversation.answers))


def _speed(answers: Sequence[Answer] | None) -> float:
    answers = answers or ()
    return _ratio(sum(len(answer.token_ids) for answer in answers), sum(answer.seconds for answer in answers))


def _decode_speed(answers: Sequence[Answer] | None) -> float:
    answers = answers or ()
    return _ratio(
        sum(len(answer.token_ids) - 1 for answer in answers), sum(answer.decode_seconds for answer in answers)
    )


def _mean(values: Iterable[float | int]) -> float:
    numbers = list(values)
    return _ratio(sum(numbers), len(numbers))


def _ratio(a: float | int, b: float | int) -> float:
    return a / b if b else float("nan")
