"""Has the same conversations under plain decoding and under a drafter, and keeps what each answer cost."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from eagle_jax import api
from eagle_jax.api.prompts import encode
from eagle_jax.evaluation.compiles import counting_compiles
from eagle_jax.evaluation.questions import Question

Message = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """One turn's answer and its cost.

    Args:
        text, token_ids: what was generated.
        passes: passes of the target model, prefill not counted.
        mean_accepted_length: tokens committed per pass; nan without a pass.
        seconds: wall time of the request, tokenizing and prefill included; nothing was compiled meanwhile.
        decode_seconds: the part of it that followed prefill.
    """

    text: str
    token_ids: tuple[int, ...]
    passes: int
    mean_accepted_length: float
    seconds: float
    decode_seconds: float


@dataclasses.dataclass(frozen=True)
class Record:
    """A question with both methods' answers, one per turn that fitted into the context."""

    question: Question
    plain: tuple[Answer, ...]
    eagle: tuple[Answer, ...]

    @property
    def identical(self) -> int:
        """Answers whose token ids are the same under both methods."""
        return sum(a.token_ids == b.token_ids for a, b in zip(self.plain, self.eagle, strict=True))

    @property
    def divergence(self) -> tuple[int, int] | None:
        """Where the first answers that differ part: (turn, token), counted from 0; None when all are identical."""
        for turn, (a, b) in enumerate(zip(self.plain, self.eagle, strict=True)):
            if a.token_ids != b.token_ids:
                pairs = itertools.zip_longest(a.token_ids, b.token_ids)
                return turn, next(token for token, (x, y) in enumerate(pairs) if x != y)
        return None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Records of all questions that could be asked, and the ids of those that were too long.

    Args:
        records: one per question asked.
        skipped: questions of which not even the first turn fits into the context.
        shortened: questions that were asked, but not to their last turn.
    """

    records: tuple[Record, ...]
    skipped: tuple[int | str, ...]
    shortened: tuple[int | str, ...]


def compare(
    model: api.Model,
    questions: Sequence[Question],
    *,
    max_new_tokens: int,
    tree: Any = "auto",
    chat: bool = True,
    progress: Callable[[int, int], None] | None = None,
    **sampling: Any,
) -> Comparison:
    """Asks every question under plain decoding and under the model's EAGLE head, turn by turn, in changing order.

    A turn fits when its prompt and `max_new_tokens` more tokens stay within the context; a conversation ends before the
    first turn that does not. Each request that compiled something is repeated, so compiling is never timed.

    Args:
        model: a loaded pair.
        questions: what to ask.
        max_new_tokens: longest answer, in tokens.
        tree: the draft tree, as in `generate`.
        chat: wrap the turns in the model's chat template; otherwise the turns and answers are joined as plain text.
        progress: called with (questions done, questions) after each question.
        sampling: temperature, top_k, top_p, min_p and seed, as in `generate`.
    """
    methods = {"plain": {"drafter": "none"}, "eagle": {"drafter": "eagle", "tree": tree}}
    records, skipped, shortened = [], [], []
    for done, question in enumerate(questions):
        order = list(methods) if done % 2 == 0 else list(reversed(methods))  # neither method always meets warm caches
        talks: dict[str, list[Message]] = {name: [] for name in methods}
        answers: dict[str, list[Answer]] = {name: [] for name in methods}
        for turn in question.turns:
            for talk in talks.values():
                talk.append({"role": "user", "content": turn})
            if any(not _fits(model, _prompt(talk, chat), max_new_tokens) for talk in talks.values()):
                break
            for name in order:
                prompt = _prompt(talks[name], chat)
                answer = _ask(model, prompt, max_new_tokens=max_new_tokens, **methods[name], **sampling)
                answers[name].append(answer)
                talks[name].append({"role": "assistant", "content": answer.text})
        if answers["plain"]:
            records.append(Record(question, tuple(answers["plain"]), tuple(answers["eagle"])))
        if not answers["plain"]:
            skipped.append(question.id)
        elif len(answers["plain"]) < len(question.turns):
            shortened.append(question.id)
        if progress is not None:
            progress(done + 1, len(questions))
    return Comparison(tuple(records), tuple(skipped), tuple(shortened))


def _prompt(talk: list[Message], chat: bool) -> list[Message] | str:
    return list(talk) if chat else "\n".join(message["content"] for message in talk)


def _fits(model: api.Model, prompt: list[Message] | str, max_new_tokens: int) -> bool:
    ids = encode(model.tokenizer, prompt, model.target.config.vocab_size, "the prompt")
    return len(ids) + max_new_tokens <= model.context


def _ask(model: api.Model, prompt: list[Message] | str, **request: Any) -> Answer:
    """Repeats the request until nothing was compiled during it; a second round does, unless something is odd."""
    for _ in range(3):
        with counting_compiles() as compiles:
            start = time.perf_counter()
            result = api.generate(model, prompt, **request)
            seconds = time.perf_counter() - start
        if not compiles.count:
            break
    return Answer(
        text=result.text,
        token_ids=tuple(result.token_ids),
        passes=result.stats.cycles,
        mean_accepted_length=result.stats.mean_accepted_length,
        seconds=seconds,
        decode_seconds=result.stats.decode_seconds,
    )
