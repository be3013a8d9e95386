"""An answer told piece by piece, while it is being made."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from eagle_jax.scheduling.batch import Said
from eagle_jax.scheduling.results import Chunk, Result
from eagle_jax.text.detokenize import decode, settled


class Telling:
    """What has been told of one answer. Pieces hold whole characters, and together the text that the result has.

    Attributes:
        over: whether the result was told.
    """

    def __init__(self, index: int, tokenizer: Any, stop: Sequence[str]):
        self._index, self._tokenizer, self._stop = index, tokenizer, stop
        self._text, self._tokens = "", 0
        self.over = False

    def chunks(self, said: Said, result: Result | None, *, by_pass: bool = False) -> Iterator[Chunk]:
        """What is new: in one chunk, or in one for each pass of the target; nothing if there is nothing."""
        self.over = result is not None
        sizes = [size for _, size in _passes(said.came_with[self._tokens :])] if by_pass else []
        for size in sizes[:-1]:
            yield from self._until(said, self._tokens + size, None)
        yield from self._until(said, len(said.token_ids), result)

    def _until(self, said: Said, end: int, result: Result | None) -> Iterator[Chunk]:
        new = slice(self._tokens, end)
        text = settled(decode(self._tokenizer, said.token_ids[:end]), self._stop) if result is None else result.text
        piece, self._text, self._tokens = text[len(self._text) :], text, end
        if piece or new.start < end or result is not None:
            yield Chunk(
                index=self._index,
                text=piece,
                token_ids=said.token_ids[new],
                result=result,
                accepted_lengths=[size for cycle, size in _passes(said.came_with[new]) if cycle > 0],
                logprobs=None if said.logprobs is None else said.logprobs[new],
                seconds=said.seconds,
                cycle=said.trees.get(said.came_with[end - 1]) if new.start < end else None,
            )


def _passes(came_with: list[int]) -> Iterator[tuple[int, int]]:
    """The passes that tokens came with, and how many came with each; 0 is the prompt's."""
    for cycle, tokens in itertools.groupby(came_with):
        yield cycle, len(list(tokens))
