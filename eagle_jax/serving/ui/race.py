"""A race: the same prompt and seed decoded plainly and with a drafter."""

import itertools
from collections.abc import Iterator
from typing import Any

from eagle_jax.api import Chunk, Model, Result, encode, stream
from eagle_jax.serving.ui.step_events import StepEvents, summary

WARMUP_CHUNKS = 2  # chunks of a discarded answer, so that nothing is compiled while a clock runs


class Lane:
    """One of the two answers.

    Attributes:
        seconds: decoding time since the first token.
        result: the answer; None until it is complete.
    """

    def __init__(self, model: Model, prompt: Any, options: dict[str, Any]):
        self._chunks = stream(model, prompt, **options)
        ids = encode(model.tokenizer, prompt, model.target.config.vocab_size, "the prompt")
        self._step_events = StepEvents(model.tokenizer, ids)
        self.seconds = 0.0
        self.result: Result | None = None

    def advance(self) -> Iterator[dict[str, Any]]:
        """Advances by one step and yields its events."""
        chunk: Chunk = next(self._chunks)
        self.seconds, self.result = chunk.seconds, chunk.result
        if chunk.token_ids:
            yield self._step_events.event(chunk)
        if chunk.result is not None:
            yield {"done": summary(chunk.result)}


def race(model: Model, prompt: Any, *, drafter: str, tree: Any, **options: Any) -> Iterator[dict[str, Any]]:
    """Yields the events of a race, step by step; `lane` is "plain" or "drafted", and the last event is the verdict.

    The lanes share the device and take turns: the lane with the smaller clock goes next. A clock counts the seconds
    that its lane spent on decoding, without prefill. All arguments are those of `stream`.

    Raises:
        ValueError, TypeError: as `stream`.
    """
    methods = {"plain": {"drafter": "none"}, "drafted": {"drafter": drafter, "tree": tree}}
    for method in methods.values():
        for _ in itertools.islice(stream(model, prompt, **options, **method), WARMUP_CHUNKS):
            pass
    lanes = {name: Lane(model, prompt, options | method) for name, method in methods.items()}
    while running := [name for name, lane in lanes.items() if lane.result is None]:
        next_lane = min(running, key=lambda name: lanes[name].seconds)
        for event in lanes[next_lane].advance():
            yield {"lane": next_lane} | event
    plain, drafted = (lane.result for lane in lanes.values())
    if plain is not None and drafted is not None:
        yield {"verdict": verdict(plain, drafted)}


def verdict(plain: Result, drafted: Result) -> dict[str, Any]:
    """Returns whether both answers have the same tokens, how many agree, and the speedup by drafting."""
    pairs = zip(plain.token_ids, drafted.token_ids)
    seconds = plain.stats.decode_seconds, drafted.stats.decode_seconds
    return {
        "identical": plain.token_ids == drafted.token_ids,
        "tokens": len(plain.token_ids),
        "same": sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)),
        "times": seconds[0] / seconds[1] if all(seconds) else None,
    }
