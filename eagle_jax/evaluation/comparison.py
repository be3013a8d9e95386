"""Runs the same conversations with several methods, and records the cost of each answer."""

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
    """A decoding method.

    Args:
        name: name in files and tables.
        drafter, tree: as in `generate`.
        model: model with what the drafter needs; None for the prompter's model.
    """

    name: str
    drafter: str
    tree: Any = "auto"
    model: api.Model | None = None


MAX_TRIES = 10
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
    """Asks every question with every method, and yields each conversation once it is complete.

    The first method rotates from question to question, so that none always profits from warm caches. A conversation
    ends before the first turn that does not fit; a question whose first turn does not fit is skipped (see `too_long`).
    A request that compiled something is repeated, up to 10 attempts, so that compilation is not timed.

    Args:
        prompter: the model and its prompts.
        answered: pairs of method name and question id that are complete already.
        repeats: repetitions of each question with all methods in turn; the fastest conversation counts.
        progress: called with (conversations done, total), which count repetitions and skipped conversations.
        sampling: temperature, top_k, top_p, min_p and seed, as in `generate`.
    """
    num_done, total = 0, len(questions) * len(methods) * repeats
    for number, question in enumerate(questions):
        first = number % len(methods)
        runs_by_method: dict[str, list[list[Answer]]] = {method.name: [] for method in methods}
        for method in (*methods[first:], *methods[:first]) * repeats:
            if (method.name, question.id) not in answered:
                runs = runs_by_method[method.name]
                runs.append(_converse(prompter, question, method, sampling))
                if len(runs) == repeats and (answers := min(runs, key=_seconds)):
                    yield Conversation(question.id, question.category, method.name, tuple(answers))
            num_done += 1
            if progress is not None:
                progress(num_done, total)


def _seconds(answers: list[Answer]) -> float:
    return math.fsum(answer.seconds for answer in answers)


def too_long(prompter: Prompter, questions: Sequence[Question]) -> list[int | str]:
    """Returns the ids of the questions whose first turn leaves no room for an answer."""
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
    """Sends the request, again if something was compiled during it."""
    request = dict(max_new_tokens=prompter.max_new_tokens, drafter=method.drafter, tree=method.tree, **sampling)
    for _ in range(MAX_TRIES):
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
