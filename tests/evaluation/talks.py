"""Made-up conversations, whose figures can be told without the code under test."""

from eagle_jax.api import BudgetUse
from eagle_jax.evaluation import Answer, Conversation


def answer(*lengths: int, seconds: float = 1.0, first: int = 0, retokenized: int | None = None) -> Answer:
    """An answer whose steps committed `lengths` tokens, after the first token that comes with the prompt."""
    ids = tuple(range(first, first + 1 + sum(lengths)))
    return Answer(
        text=" ".join(map(str, ids)),
        token_ids=ids,
        prompt_ids=(7, 8, 9),
        prompt_cut=0,
        accepted_lengths=lengths,
        retokenized=len(ids) if retokenized is None else retokenized,
        seconds=seconds,
        prefill_seconds=seconds / 4,
        decode_seconds=seconds * 3 / 4,
        spent=(BudgetUse(4 if any(length > 1 for length in lengths) else 1, len(lengths), sum(lengths), seconds / 2),),
    )


def plain(*answers: Answer, seconds: float = 4.0) -> list[Answer]:
    """The same texts, one token a step."""
    return [answer(*[1] * (len(a.token_ids) - 1), seconds=seconds, first=a.token_ids[0]) for a in answers]


def conversation(id: int | str, category: str, method: str, *answers: Answer) -> Conversation:
    return Conversation(id, category, method, answers)
