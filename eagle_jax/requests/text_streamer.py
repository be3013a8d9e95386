"""Streams the answer to one request in chunks."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from eagle_jax.requests.request import PartialOutput
from eagle_jax.requests.results import Chunk, Result
from eagle_jax.text.detokenize import IncrementalDetokenizer, settled


class TextStreamer:
    """Turns the growing output of one request into chunks of complete characters, which join to the result's text.

    Attributes:
        finished: whether the chunk with the result was returned.
    """

    def __init__(self, index: int, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str]):
        self._index, self._stop = index, stop
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        self._pending = ""  # complete characters that may begin a stop string
        self._length, self._tokens = 0, 0  # characters and tokens returned so far
        self.finished = False

    def chunks(self, output: PartialOutput, result: Result | None, *, by_step: bool = False) -> Iterator[Chunk]:
        """Yields the new output, if there is any, in one chunk, or with `by_step` in one chunk per step."""
        self.finished = result is not None
        sizes = [size for _, size in _by_step(output.committed_at_step[self._tokens :])] if by_step else []
        for size in sizes[:-1]:
            yield from self._until(output, self._tokens + size, None)
        yield from self._until(output, len(output.token_ids), result)

    def _until(self, output: PartialOutput, end: int, result: Result | None) -> Iterator[Chunk]:
        new = slice(self._tokens, end)
        if result is None:
            self._pending += self._detokenizer.extend(output.token_ids[new])
            piece = settled(self._pending, self._stop)
            self._pending = self._pending[len(piece) :]
        else:
            piece = result.text[self._length :]
        self._length, self._tokens = self._length + len(piece), end
        if piece or new.start < end or result is not None:
            yield Chunk(
                index=self._index,
                text=piece,
                token_ids=list(output.token_ids[new]),
                result=result,
                accepted_lengths=[size for step, size in _by_step(output.committed_at_step[new]) if step > 0],
                logprobs=None if output.logprobs is None else list(output.logprobs[new]),
                top_logprobs=None if output.top_logprobs is None else list(output.top_logprobs[new]),
                seconds=output.seconds,
                step=output.trees.get(output.committed_at_step[end - 1]) if new.start < end else None,
            )


def _by_step(committed_at_step: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields each step with the number of tokens that it committed; step 0 is prefill."""
    for step, tokens in itertools.groupby(committed_at_step):
        yield step, len(list(tokens))
