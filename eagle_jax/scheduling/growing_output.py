"""An answer on the host: polls append to it, and readers get immutable views of it."""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
from jaxtyping import Float, Int

from eagle_jax.requests.request import PartialOutput
from eagle_jax.requests.results import Step
from eagle_jax.scheduling.new_columns import Columns

T = TypeVar("T")


class Prefix(Sequence[T]):
    """An immutable view of the first `length` items of a list that only grows, safe to read on another thread."""

    def __init__(self, items: list[T], length: int):
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        places = range(self._length)[index]
        if isinstance(places, int):
            return self._items[places]
        if places.step == 1:
            return self._items[places.start : places.stop]
        return [self._items[place] for place in places]


class GrowingOutput:
    """All that was polled of one answer.

    Args:
        logprobs: whether log-probabilities are kept.
        top_logprobs: how many likely tokens are kept at each position.
    """

    def __init__(self, *, logprobs: bool, top_logprobs: int):
        self._token_ids: list[int] = []
        self._committed_at_step: list[int] = []
        self._logprobs: list[float] | None = [] if logprobs else None
        self._top_logprobs: list[list[tuple[int, float]]] | None = [] if top_logprobs else None
        self._count = top_logprobs
        self._trees: dict[int, Step] = {}

    def __len__(self) -> int:
        return len(self._token_ids)

    def extend(self, new: Columns, tree: Step | None) -> None:
        """Appends the tokens of a poll; `tree` is the tree of the last step, from a drafter that records it."""
        self._token_ids += new.tokens.tolist()
        self._committed_at_step += new.committed_at_step.tolist()
        if self._logprobs is not None and new.logprobs is not None:
            self._logprobs += new.logprobs.tolist()
        if self._top_logprobs is not None and new.top is not None:
            self._top_logprobs += pairs_of(np.asarray(new.top.ids), np.asarray(new.top.logprobs), self._count)
        if tree is not None and self._committed_at_step[-1]:
            self._trees[self._committed_at_step[-1]] = tree

    def output(self, seconds: float) -> PartialOutput:
        """Returns the answer as it is now."""

        def so_far(items: list[Any] | None) -> Any:
            return None if items is None else Prefix(items, len(self))

        return PartialOutput(
            token_ids=so_far(self._token_ids),
            committed_at_step=so_far(self._committed_at_step),
            logprobs=so_far(self._logprobs),
            top_logprobs=so_far(self._top_logprobs),
            trees=self._trees,
            seconds=seconds,
        )


def pairs_of(
    ids: Int[np.ndarray, "t k"], logprobs: Float[np.ndarray, "t k"], count: int
) -> list[list[tuple[int, float]]]:
    """Returns the `count` likeliest tokens in each of t places, with their log-probabilities."""
    columns = ids[:, :count].tolist(), logprobs[:, :count].tolist()
    return [list(zip(*place, strict=True)) for place in zip(*columns, strict=True)]
