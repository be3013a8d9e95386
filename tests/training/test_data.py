"""Conversations become rows, with the assistant's tokens marked."""

import numpy as np
import pytest

from eagle_jax.training import data


def example(start: int, size: int) -> data.Example:
    answer = np.zeros(size, bool)
    answer[size // 2 :] = True
    return data.Example(np.arange(start, start + size, dtype=np.int32), answer)


def test_pack_keeps_every_conversation_whole_and_once():
    examples = [example(100 * i, size) for i, size in enumerate([5, 9, 3, 7, 4, 6], start=1)]
    rows = data.pack(examples, length=12, seed=0)
    assert sorted(rows.tokens[rows.filled]) == sorted(np.concatenate([e.tokens for e in examples]))
    assert not rows.tokens[~rows.filled].any() and not rows.answer[~rows.filled].any()
    assert rows.answer.sum() == sum(e.answer.sum() for e in examples)


def test_a_follower_loses_the_token_that_starts_a_text():
    examples = [data.Example(np.array([1, 10 * i, 10 * i + 1], np.int32), np.array([0, 0, 1], bool)) for i in (1, 2, 3)]
    rows = data.pack(examples, length=7, seed=0, bos=1)
    assert rows.tokens.shape == (1, 7) and list(rows.tokens[0]).count(1) == 1 and rows.answer.sum() == 3


def test_pack_cuts_what_is_longer_than_a_row():
    rows = data.pack([example(1, 20)], length=8, seed=0)
    np.testing.assert_array_equal(rows.tokens, [np.arange(1, 9)])


def test_apart_gives_each_conversation_its_row():
    rows = data.one_per_row([example(1, 3), example(7, 9)], length=4)
    np.testing.assert_array_equal(rows.tokens, [[1, 2, 3, 0], [7, 8, 9, 10]])
    np.testing.assert_array_equal(rows.filled.sum(axis=1), [3, 4])


def test_pack_closes_rows_when_too_many_are_open():
    examples = [example(100 * i, 6) for i in range(1, 11)]
    rows = data.pack(examples, length=6, seed=0, open_rows=2)
    assert len(rows) == 10 and rows.filled.all()


def test_batches_are_shuffled_and_full():
    rows = data.pack([example(100 * i, 6) for i in range(1, 8)], length=6, seed=0)
    batches = list(rows.batches(3, seed=1))
    assert [len(b) for b in batches] == [3, 3]
    firsts = [int(row[0]) for b in batches for row in b.tokens]
    assert len(set(firsts)) == 6
    with pytest.raises(ValueError, match="a batch of 8 rows, but there are only 7"):
        next(rows.batches(8, seed=0))
