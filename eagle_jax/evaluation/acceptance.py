"""Acceptance of a head on held-out questions."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from eagle_jax import api
from eagle_jax.evaluation.prompts import Prompter
from eagle_jax.evaluation.questions import Question


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Acceptance over all steps of all answers.

    Attributes:
        mean_accepted_length: tokens per step, with the bonus token; 1 + the sum of `by_depth`.
        by_depth: share of the steps that committed the drafted token at depth 1, 2, ...
        steps: number of steps.
        tokens: number of tokens of the answers.
        skipped: number of questions that did not fit into the context.
    """

    mean_accepted_length: float
    by_depth: tuple[float, ...]
    steps: int
    tokens: int
    skipped: int


def measure_acceptance(
    model: api.Model,
    questions: Sequence[Question],
    *,
    max_new_tokens: int,
    temperature: float,
    chat: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Acceptance:
    """Answers the first turn of each question, with its own seed and the method's published tree, so that the result
    depends neither on the machine nor on the batch size.

    Raises:
        ValueError: no question leaves room for an answer in the context.
    """
    prompter = Prompter(model, chat, max_new_tokens)
    prompts = [prompter([{"role": "user", "content": question.turns[0]}]) for question in questions]
    fitting = [prompt.ids for prompt in prompts if prompt is not None]
    if not fitting:
        raise ValueError(
            f"none of the {len(prompts)} questions leaves room for {max_new_tokens} new tokens in the context of "
            f"{model.context}"
        )
    results = api.generate(
        model,
        fitting,
        tree="published",
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=list(range(len(fitting))),
        progress=progress,
    )
    steps = np.array([result.stats.steps for result in results])
    if not steps.any():
        raise ValueError("every answer ended with its first token, so nothing was drafted")
    shares = np.nan_to_num([result.stats.accepted_by_depth for result in results])
    by_depth = (shares * steps[:, None]).sum(axis=0) / steps.sum()
    return Acceptance(
        mean_accepted_length=float(1 + by_depth.sum()),
        by_depth=tuple(map(float, by_depth)),
        steps=int(steps.sum()),
        tokens=sum(len(result.token_ids) for result in results),
        skipped=len(prompts) - len(fitting),
    )
