"""Whole answers of several methods that take turns, known bit by bit."""

from collections.abc import Iterator, Mapping, Sequence

from turns import Method, Request, Timed


def answered(methods: Mapping[str, Method], asked: Sequence[list[int]], repeats: int) -> Iterator[tuple[str, Timed]]:
    """After every answer of a method: its name, and all of its answers by then.

    The first round warms up: its answers count only as long as there are no others, since they are never the fastest.
    """
    runs: dict[str, list[list[Request]]] = {name: [[] for _ in asked] for name in methods}
    for _ in range(repeats + 1):
        for index, prompt in enumerate(asked):
            for name, run in methods.items():
                runs[name][index].append(run(prompt))
                yield name, Timed([requests for requests in runs[name] if requests])


def beside(other: Timed, one: Timed) -> Timed:
    """The other method's answers to the prompts that one method has answered by now."""
    return Timed(other.requests[: len(one.requests)])
