"""Tokenized conversations as rows of one length."""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from eagle_jax.training.masks import Example, tokenize

__all__ = ["Example", "Rows", "apart", "pack", "tokenize"]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Conversations packed into rows of one length.

    Attributes:
        tokens: ids; 0 where a row is not full.
        answer: tokens that the assistant produced.
        filled: tokens that belong to a conversation.
    """

    tokens: Int[np.ndarray, "r n"]
    answer: Bool[np.ndarray, "r n"]
    filled: Bool[np.ndarray, "r n"]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def crc(self) -> int:
        """Tells texts apart, and what of them is learnt."""
        return zlib.crc32(self.answer.tobytes(), zlib.crc32(self.tokens.tobytes()))

    def batches(self, size: int, seed: int) -> Iterator["Rows"]:
        """Batches of `size` rows in shuffled order; an incomplete last batch is left out."""
        if size > len(self):
            raise ValueError(f"a batch of {size} rows was asked for, but there are only {len(self)} rows")
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            rows = order[start : start + size]
            yield Rows(self.tokens[rows], self.answer[rows], self.filled[rows])


def pack(examples: Sequence[Example], length: int, seed: int, open_rows: int = 64, *, bos: int | None = None) -> Rows:
    """Packs shuffled conversations into rows, first fit; longer ones are cut to `length`.

    A conversation that follows another in a row loses the token that starts a text (`bos`, where it begins with it), so
    the row reads as one chat of several turns.
    """
    closed: list[list[Example]] = []
    still_open: list[list[Example]] = []
    for index in np.random.default_rng(seed).permutation(len(examples)):
        example = examples[index]
        follower = _after_another(example, bos)
        row = next((row for row in still_open if _used(row) + len(follower.tokens) <= length), None)
        if row is None:
            still_open.append([Example(example.tokens[:length], example.answer[:length])])
            if len(still_open) > open_rows:
                fullest = max(range(len(still_open)), key=lambda i: _used(still_open[i]))
                closed.append(still_open.pop(fullest))
        else:
            row.append(follower)
    return _rows(closed + still_open, length)


def apart(examples: Sequence[Example], length: int) -> Rows:
    """Returns a row for each conversation, cut to `length`."""
    return _rows([[Example(example.tokens[:length], example.answer[:length])] for example in examples], length)


def _after_another(example: Example, bos: int | None) -> Example:
    if len(example.tokens) and example.tokens[0] == bos:
        return Example(example.tokens[1:], example.answer[1:])
    return example


def _used(row: list[Example]) -> int:
    return sum(len(example.tokens) for example in row)


def _rows(groups: list[list[Example]], length: int) -> Rows:
    tokens = np.zeros((len(groups), length), np.int32)
    answer = np.zeros((len(groups), length), bool)
    filled = np.zeros((len(groups), length), bool)
    for r, group in enumerate(groups):
        used = _used(group)
        tokens[r, :used] = np.concatenate([example.tokens for example in group])
        answer[r, :used] = np.concatenate([example.answer for example in group])
        filled[r, :used] = True
    return Rows(tokens, answer, filled)
