"""What answers amount to: as Spec-Bench computes it, flaws included, and without those flaws.

Spec-Bench's figures (`evaluation/speed.py` of hemingkx/Spec-Bench) compare with its leaderboard. Three things in them
favour one side or the other: the baseline's tokens are those of its text when it is tokenized anew, less one for a BOS
token that is not always there, while a method's are the tokens that it generated; speeds are averaged over questions,
so short answers weigh as much as long ones; and all speeds include reading the prompt.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from eagle_jax import api
from eagle_jax.evaluation.answers import Answer, Conversation

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
OVERALL = "overall"
LONG = 32  # tokens; shorter answers are not called repetitive


@dataclasses.dataclass(frozen=True)
class SpecBench:
    """Spec-Bench's four figures.

    Attributes:
        mean_accepted_tokens: mean over all steps of the tokens that they committed.
        tokens_per_second: mean over questions of generated tokens by wall time, prefill included.
        baseline_tokens_per_second: the same of plain decoding, its tokens counted as above.
        speedup: their quotient.
    """

    mean_accepted_tokens: float
    tokens_per_second: float
    baseline_tokens_per_second: float
    speedup: float


@dataclasses.dataclass(frozen=True)
class Figures:
    """One method on a group of questions. Speeds are tokens by seconds, each summed over all answers.

    What compares with plain decoding is nan where that was not among the methods, and so is a quotient of nothing.

    Attributes:
        questions, answers, tokens, steps: how many; a question of two turns has two answers.
        tokens_per_second: whole requests, prefill included.
        decode_tokens_per_second: tokens after the first, and the time they took.
        seconds_to_first_token: mean over the answers.
        speedup, decode_speedup: those speeds by plain decoding's.
        mean_accepted_length: tokens committed per step, its own included.
        accepted_by_depth: share of the steps that committed the drafted token at depth 1, 2, ...
        alpha: share of the steps that committed depth n among those that committed depth n - 1 (n-alpha, where the
            tree is a chain). An answer's last step is left out: its length is the end of the answer's doing.
        lengths: steps that committed 1, 2, ... tokens.
        identical: answers with the same token ids as plain decoding's.
        distinct_bigrams: share of pairs of neighbouring tokens that are new in their answer; text that goes round in
            circles has few, and is easy to draft.
        repetitive: answers of `LONG` tokens or more of whose pairs less than half are new.
        specbench: the figures as Spec-Bench computes them.
        spent: on steps, by the size of the trees.
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
    """Spec-Bench's task of a category: MT-bench's eight are one."""
    return "mt_bench" if category in MT_BENCH else category


def figures(conversations: Sequence[Conversation], plain: Sequence[Conversation] | None) -> Figures:
    """Returns the figures of one method's conversations compared with plain decoding's on the same questions."""
    answers = list(_answers(conversations))
    base = None if plain is None else list(_answers(plain))
    lengths = [length for answer in answers for length in answer.accepted_lengths]
    deepest = max(lengths, default=0)
    reached = [sum(length > depth for length in lengths) for depth in range(deepest)]
    inner = [length for answer in answers for length in answer.accepted_lengths[:-1]]
    tried = [sum(length > depth for length in inner) for depth in range(deepest)]
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
        speedup=_ratio(speed, _speed(base)),
        decode_speedup=_ratio(decode_speed, _decode_speed(base)),
        mean_accepted_length=_ratio(sum(lengths), len(lengths)),
        accepted_by_depth=tuple(_ratio(count, len(lengths)) for count in reached[1:]),
        alpha=tuple(_ratio(deeper, above) for above, deeper in itertools.pairwise(tried) if above),
        lengths=tuple(lengths.count(length) for length in range(1, deepest + 1)),
        identical=_identical(conversations, plain or ()),
        distinct_bigrams=_ratio(sum(len(set(one)) for one in pairs), sum(map(len, pairs))),
        repetitive=sum(len(one) >= LONG - 1 and 2 * len(set(one)) < len(one) for one in pairs),
        specbench=specbench(conversations, plain or ()),
        spent=tuple(api.sum_spent(one for answer in answers for one in answer.spent)),
    )


def by_group(
    conversations: Mapping[str, Sequence[Conversation]], plain: str | None, *, tasks: bool
) -> dict[str, dict[str, Figures]]:
    """Returns the figures of every method: per group of questions, in order of appearance, and last of all, "overall".

    Args:
        conversations: by method; the same questions for each.
        plain: the method that is plain decoding; None if none is.
        tasks: group by Spec-Bench's tasks rather than by the categories themselves.
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
    """Returns the figures as Spec-Bench computes them."""
    lengths = [length for answer in _answers(conversations) for length in answer.accepted_lengths]
    speed = _mean(
        _by_seconds(conversation, sum(len(answer.token_ids) for answer in conversation.answers))
        for conversation in conversations
    )
    baseline = _mean(
        _by_seconds(conversation, sum(answer.retokenized - 1 for answer in conversation.answers))
        for conversation in plain
    )
    return SpecBench(_mean(lengths), speed, baseline, _ratio(speed, baseline))


def divergence(a: Conversation, b: Conversation) -> tuple[int, int] | None:
    """Returns where two conversations part, (turn, token) from 0; None if they are identical as far as both go."""
    for turn, (one, other) in enumerate(zip(a.answers, b.answers, strict=False)):
        if one.token_ids != other.token_ids:
            pairs = itertools.zip_longest(one.token_ids, other.token_ids)
            return turn, next(token for token, (x, y) in enumerate(pairs) if x != y)
    return None


def _identical(conversations: Sequence[Conversation], plain: Sequence[Conversation]) -> int:
    base = {conversation.id: conversation.answers for conversation in plain}
    pairs = ((conversation.answers, base.get(conversation.id, ())) for conversation in conversations)
    return sum(a.token_ids == b.token_ids for one, other in pairs for a, b in zip(one, other, strict=False))


def _answers(conversations: Iterable[Conversation]) -> Iterable[Answer]:
    return (answer for conversation in conversations for answer in conversation.answers)


def _by_seconds(conversation: Conversation, tokens: int) -> float:
    return _ratio(tokens, sum(answer.seconds for answer in conversation.answers))


def _speed(answers: Sequence[Answer] | None) -> float:
    some = answers or ()
    return _ratio(sum(len(answer.token_ids) for answer in some), sum(answer.seconds for answer in some))


def _decode_speed(answers: Sequence[Answer] | None) -> float:
    some = answers or ()
    return _ratio(sum(len(answer.token_ids) - 1 for answer in some), sum(answer.decode_seconds for answer in some))


def _mean(values: Iterable[float | int]) -> float:
    some = list(values)
    return _ratio(sum(some), len(some))


def _ratio(a: float | int, b: float | int) -> float:
    return a / b if b else float("nan")
