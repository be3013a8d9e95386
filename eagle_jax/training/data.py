"""Conversations as rows of tokens, with a mark on what the assistant said."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class Example:
    """One conversation: token ids, and which of them the assistant produced (its end token included)."""

    tokens: Int[np.ndarray, " n"]
    answer: Bool[np.ndarray, " n"]


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

    def batches(self, size: int, seed: int) -> Iterator["Rows"]:
        """Batches of `size` rows in shuffled order; an incomplete last batch is left out."""
        if size > len(self):
            raise ValueError(f"a batch of {size} rows was asked for, but there are only {len(self)} rows")
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            rows = order[start : start + size]
            yield Rows(self.tokens[rows], self.answer[rows], self.filled[rows])


def tokenize(conversation: Sequence[dict[str, str]], tokenizer: Any) -> Example:
    """Applies the chat template; the template's `{% generation %}` blocks say what the assistant produced.

    Raises:
        ValueError: the template marks nothing as the assistant's.
    """
    encoded = tokenizer.apply_chat_template(
        list(conversation), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    answer = np.asarray(encoded["assistant_masks"], bool)
    if not answer.any():
        raise ValueError(
            "the chat template marks no token as the assistant's: "
            "put {% generation %} ... {% endgeneration %} around its text"
        )
    return Example(np.asarray(encoded["input_ids"], np.int32), answer)


def pack(examples: Sequence[Example], length: int, seed: int, open_rows: int = 64) -> Rows:
    """Packs shuffled conversations into rows, first fit; longer ones are cut to `length`.

    A conversation that follows another in a row loses its first token (the one that starts a text), so the row reads as
    one chat of several turns.
    """
    closed: list[list[Example]] = []
    still_open: list[list[Example]] = []
    for index in np.random.default_rng(seed).permutation(len(examples)):
        example = examples[index]
        follower = Example(example.tokens[1:], example.answer[1:])
        row = next((row for row in still_open if _used(row) + len(follower.tokens) <= length), None)
        if row is None:
            still_open.append([Example(example.tokens[:length], example.answer[:length])])
            if len(still_open) > open_rows:
                fullest = max(range(len(still_open)), key=lambda i: _used(still_open[i]))
                closed.append(still_open.pop(fullest))
        else:
            row.append(follower)
    return _rows(closed + still_open, length)


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
