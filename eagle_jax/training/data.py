"""Packs tokenized conversations into rows of one length."""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from eagle_jax.training.masks import Example, tokenize

__all__ = ["Example", "Rows", "one_per_row", "pack", "tokenize"]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Conversations packed into rows of one length.

    Attributes:
        tokens: token ids; 0 for padding.
        answer: whether the assistant produced each token.
        filled: whether each token is not padding.
    """

    tokens: Int[np.ndarray, "r n"]
    answer: Bool[np.ndarray, "r n"]
    filled: Bool[np.ndarray, "r n"]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def crc(self) -> int:
        """Checksum of the text and of the trained tokens."""
        return zlib.crc32(self.answer.tobytes(), zlib.crc32(self.tokens.tobytes()))

    def batches(self, size: int, seed: int) -> Iterator["Rows"]:
        """Yields batches of `size` rows in shuffled order, without an incomplete last batch."""
        if size > len(self):
            raise ValueError(f"a batch of {size} rows, but there are only {len(self)}; lower the batch size")
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            rows = order[start : start + size]
            yield Rows(self.tokens[rows], self.answer[rows], self.filled[rows])


def pack(examples: Sequence[Example], length: int, seed: int, open_rows: int = 64, *, bos: int | None = None) -> Rows:
    """Packs shuffled conversations into rows, first fit; longer ones are truncated to `length`.

    A conversation after another one in a row loses its BOS token, so that the row reads as one chat.
    """
    closed_rows: list[list[Example]] = []
    partial_rows: list[list[Example]] = []
    for index in np.random.default_rng(seed).permutation(len(examples)):
        example = examples[index]
        example_after = _after_another(example, bos)
        row = next((row for row in partial_rows if _length(row) + len(example_after.tokens) <= length), None)
        if row is None:
            partial_rows.append([Example(example.tokens[:length], example.answer[:length])])
            if len(partial_rows) > open_rows:
                fullest = max(range(len(partial_rows)), key=lambda i: _length(partial_rows[i]))
                closed_rows.append(partial_rows.pop(fullest))
        else:
            row.append(example_after)
    return _rows(closed_rows + partial_rows, length)


def one_per_row(examples: Sequence[Example], length: int) -> Rows:
    """Returns one row per conversation, truncated to `length`."""
    return _rows([[Example(example.tokens[:length], example.answer[:length])] for example in examples], length)


def _after_another(example: Example, bos: int | None) -> Example:
    if len(example.tokens) and example.tokens[0] == bos:
        return Example(example.tokens[1:], example.answer[1:])
    return example


def _length(row: list[Example]) -> int:
    return sum(len(example.tokens) for example in row)


def _rows(groups: list[list[Example]], length: int) -> Rows:
    tokens = np.zeros((len(groups), length), np.int32)
    answer = np.zeros((len(groups), length), bool)
    filled = np.zeros((len(groups), length), bool)
    for r, group in enumerate(groups):
        used = _length(group)
        tokens[r, :used] = np.concatenate([example.tokens for example in group])
        answer[r, :used] = np.concatenate([example.answer for example in group])
        filled[r, :used] = True
    return Rows(tokens, answer, filled)
