"""Methods take turns: every prompt by each of them, several times over, so that ratios of one run can be compared."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import eagle_jax
from benchmarks.common.tables import progress

# Seconds before each, which then runs once untimed: the threads of a library before, such as OpenMP's, spin on a while.
REST = 0.2


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer, or those of one batch.

    Attributes:
        token_ids: all tokens.
        committed: tokens that steps committed, the target's own included; that of the prefill is none of them.
        steps: how many steps there were; nan where it is not known.
        seconds: in all, prefill included, compiling not.
        decoding: of them decoding; nan where that is not known.
    """

    token_ids: list[int]
    committed: float
    steps: float
    seconds: float
    decoding: float = math.nan


Method = Callable[[Any], Answer]  # of a prompt, or of several that are a batch


@dataclasses.dataclass(frozen=True)
class Timed:
    """All answers of one method: for each prompt its repeats."""

    answers: list[list[Answer]]

    @property
    def texts(self) -> list[list[int]]:
        return [repeats[0].token_ids for repeats in self.answers]

    @property
    def accepted(self) -> float:
        """Mean acceptance length: tokens that a step commits, over all steps; nan where it is not known."""
        steps = sum(repeats[0].steps for repeats in self.answers)
        return sum(repeats[0].committed for repeats in self.answers) / steps if steps else math.nan

    def speed(self, clock: str = "seconds") -> float:
        """Tokens a second over all prompts, each by its fastest repeat."""
        spent = (min(getattr(answer, clock) for answer in repeats) for repeats in self.answers)
        return sum(map(len, self.texts)) / sum(spent)


def in_turns(methods: Mapping[str, Method], prompts: Sequence[Any], repeats: int) -> dict[str, Timed]:
    """All methods prompt by prompt, each once untimed, which compiles and warms up, and then timed."""
    answers: dict[str, list[list[Answer]]] = {name: [[] for _ in prompts] for name in methods}
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            for name, run in methods.items():
                time.sleep(REST)
                run(prompt)
                answers[name][index].append(run(prompt))
            progress(repeat * len(prompts) + index + 1, repeats * len(prompts))
    return {name: Timed(several) for name, several in answers.items()}


def ours(
    model: eagle_jax.Model,
    new_tokens: int,
    drafter: Any,
    tree: object = "auto",
    *,
    until_end: bool = False,
    temperature: float = 0.0,
) -> Method:
    """`eagle_jax.generate`; stop tokens are left out, unless answers go `until_end`."""
    model = dataclasses.replace(model, tokenizer=None, stop_ids=model.stop_ids if until_end else ())

    def run(prompt: Any) -> Answer:
        batch = prompt if isinstance(prompt[0], list) else [prompt]
        start = time.perf_counter()
        how = dict(max_new_tokens=new_tokens, temperature=temperature, drafter=drafter, tree=tree)
        results = eagle_jax.generate(model, batch, batch_size=len(batch), **how)
        spent = time.perf_counter() - start
        stats = [result.stats for result in results]
        return Answer(
            [token for result in results for token in result.token_ids],
            sum(sum(one.accepted_lengths) for one in stats),
            sum(one.steps for one in stats),
            spent - stats[0].compile_seconds,
            max(one.decode_seconds for one in stats),
        )

    return run
