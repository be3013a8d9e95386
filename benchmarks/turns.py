"""Methods that take turns: every prompt by each of them, several times over, and how fast one was beside the others."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from common import report, table

import eagle_jax

# Seconds before each, which then runs once untimed: the threads of a library before, such as OpenMP's, spin on a while.
REST = 0.2


@dataclasses.dataclass(frozen=True)
class Request:
    """One request: its tokens, tokens a pass, seconds in all and of them decoding (nan where that is not known)."""

    token_ids: list[int]
    length: float
    seconds: float
    decoding: float


Method = Callable[[list[int]], Request]


@dataclasses.dataclass(frozen=True)
class Timed:
    """All requests of one method: for each prompt its repeats."""

    requests: list[list[Request]]

    @property
    def texts(self) -> list[list[int]]:
        return [repeats[0].token_ids for repeats in self.requests]

    @property
    def length(self) -> float:
        """Tokens that a pass commits."""
        return sum(repeats[0].length for repeats in self.requests) / len(self.requests)

    def speed(self, clock: str = "seconds") -> float:
        """Tokens a second over all prompts, each by its fastest repeat."""
        return sum(map(len, self.texts)) / sum(
            min(getattr(request, clock) for request in repeats) for repeats in self.requests
        )


def in_turns(methods: Mapping[str, Method], asked: Sequence[list[int]], repeats: int) -> dict[str, Timed]:
    """Each method warmed up on every prompt, then all of them prompt by prompt."""
    for run in methods.values():
        for prompt in asked:
            run(prompt)
    runs: dict[str, list[list[Request]]] = {name: [[] for _ in asked] for name in methods}
    for repeat in range(repeats):
        for index, prompt in enumerate(asked):
            for name, run in methods.items():
                time.sleep(REST)
                run(prompt)
                runs[name][index].append(run(prompt))
        report(repeat + 1, repeats)
    return {name: Timed(requests) for name, requests in runs.items()}


def ours(
    model: eagle_jax.Model, new_tokens: int, drafter: str, tree: object = "auto", *, until_end: bool = False
) -> Method:
    """A request through our `generate`; stop tokens are left out, unless answers go `until_end`."""
    asked = dataclasses.replace(model, tokenizer=None, stop_ids=model.stop_ids if until_end else ())

    def run(prompt: list[int]) -> Request:
        start = time.perf_counter()
        result = eagle_jax.generate(asked, prompt, max_new_tokens=new_tokens, drafter=drafter, tree=tree)
        spent = time.perf_counter() - start - result.stats.compile_seconds
        stats = result.stats
        return Request(result.token_ids, stats.mean_accepted_length, spent, stats.decode_seconds)

    return run


def ratios(timed: Mapping[str, Timed], against: Mapping[str, str]) -> str:
    """A Markdown table of all methods.

    Args:
        against: further columns, and the method whose speed each divides by.
    """
    rows = []
    for name, one in timed.items():
        compared = (f"{one.speed() / timed[other].speed():.2f}" for other in against.values())
        rows.append((name, f"{one.speed():.0f}", f"{one.length:.2f}", *compared))
    return table(("method", "tokens/s", "tokens a pass", *against), rows)


def best_of(timed: Mapping[str, Timed], beginning: str) -> str | None:
    """The fastest method whose name begins so; None if there is none."""
    named = [name for name in timed if name.startswith(beginning)]
    return max(named, key=lambda name: timed[name].speed(), default=None)
