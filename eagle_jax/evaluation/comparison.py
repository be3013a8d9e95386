"""Has the same conversations under several methods, in one run, and keeps what each answer cost."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from eagle_jax import api
from eagle_jax.evaluation.answers import Answer, Conversation
from eagle_jax.evaluation.compiles import counting_compiles
from eagle_jax.evaluation.prompts import Message, Prompt, Prompter
from eagle_jax.evaluation.questions import Question


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode.

    Args:
        name: what it is called in files and tables.
        drafter, tree: as in `generate`.
        model: the model that has what the drafter needs; None is the one that makes the prompts.
    """

    name: str
    drafter: str
    tree: Any = "auto"
    model: api.Model | None = None


TRIES = 10
PLAIN, EAGLE = Method("plain", "none"), Method("eagle", "eagle")


def compare(
    prompter: Prompter,
    questions: Sequence[Question],
    methods: Sequence[Method],
    *,
    answered: Collection[tuple[str, int | str]] = (),
    repeats: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **sampling: Any,
) -> Iterator[Conversation]:
    """Asks every question under every method, and yields each conversation as soon as it is over for the last time.

    The method that begins changes from question to question, so that none always meets the warmer caches. A
    conversation ends before the first turn that does not fit; a question of which not even the first turn fits is
    passed over (see `too_long`). A request that compiled something is repeated until it does not, at most 10 times in
    all, so compiling is not timed.

    Args:
        prompter: the model, and how it is asked.
        answered: pairs of a method's name and a question's id that are there already.
        repeats: times that each question is asked, the methods in turn; the quickest conversation counts.
        progress: called with (conversations had, conversations in all), those that are there or do not fit included;
            each counts as often as it is repeated.
        sampling: temperature, top_k, top_p, min_p and seed, as in `generate`.
    """
    done, total = 0, len(questions) * len(methods) * repeats
    for number, question in enumerate(questions):
        first = number % len(methods)
        had: dict[str, list[list[Answer]]] = {method.name: [] for method in methods}
        for method in (*methods[first:], *methods[:first]) * repeats:
            if (method.name, question.id) not in answered:
                times = had[method.name]
                times.append(_converse(prompter, question, method, sampling))
                if len(times) == repeats and (answers := min(times, key=_seconds)):
                    yield Conversation(question.id, question.category, method.name, tuple(answers))
            done += 1
            if progress is not None:
                progress(done, total)


def _seconds(answers: list[Answer]) -> float:
    return math.fsum(answer.seconds for answer in answers)


def too_long(prompter: Prompter, questions: Sequence[Question]) -> list[int | str]:
    """Returns the ids of the questions of which not even the first turn leaves room for an answer."""
    return [question.id for question in questions if prompter([_user(question.turns[0])]) is None]


def first_prompt(prompter: Prompter, questions: Sequence[Question]) -> Prompt:
    """Returns the first prompt of the first question that fits."""
    prompts = (prompter([_user(question.turns[0])]) for question in questions)
    return next(prompt for prompt in prompts if prompt is not None)


def _converse(prompter: Prompter, question: Question, method: Method, sampling: dict[str, Any]) -> list[Answer]:
    conversation: list[Message] = []
    answers: list[Answer] = []
    for turn in question.turns:
        conversation.append(_user(turn))
        prompt = prompter(conversation)
        if prompt is None:
            break
        answers.append(_ask(prompter, prompt, method, sampling))
        conversation.append({"role": "assistant", "content": answers[-1].text})
    return answers


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _ask(prompter: Prompter, prompt: Prompt, method: Method, sampling: dict[str, Any]) -> Answer:
    """Repeats the request until nothing was compiled during it; the second time, unless something is odd."""
    request = dict(max_new_tokens=prompter.max_new_tokens, drafter=method.drafter, tree=method.tree, **sampling)
    for _ in range(TRIES):
        with counting_compiles() as compiles:
            start = time.perf_counter()
            result = api.generate(method.model or prompter.model, prompt.ids, **request)
            seconds = time.perf_counter() - start
        if not compiles.count:
            break
    tokenizer = prompter.model.tokenizer
    return Answer(
        text=result.text,
        token_ids=tuple(result.token_ids),
        prompt_ids=tuple(prompt.ids),
        prompt_cut=prompt.cut,
        accepted_lengths=tuple(result.stats.accepted_lengths),
        retokenized=len(tokenizer(result.text)["input_ids"]) if tokenizer else len(result.token_ids),
        seconds=seconds,
        prefill_seconds=result.stats.first_token_seconds,
        decode_seconds=result.stats.decode_seconds,
        spent=tuple(result.stats.spent),
    )
