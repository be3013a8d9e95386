"""Conversations become rows, with the assistant's tokens marked."""

import numpy as np
import pytest

from eagle_jax.training import data


def example(start: int, size: int) -> data.Example:
    answer = np.zeros(size, bool)
    answer[size // 2 :] = True
    return data.Example(np.arange(start, start + size, dtype=np.int32), answer)


class Template:
    """Stands for a tokenizer: words are tokens, the assistant's are marked if `marks` is set."""

    def __init__(self, marks: bool):
        self.marks = marks

    def apply_chat_template(self, messages, **_):
        words = [(len(word), m["role"] == "assistant") for m in messages for word in m["content"].split()]
        return {"input_ids": [w for w, _ in words], "assistant_masks": [int(said and self.marks) for _, said in words]}


CHAT = [{"role": "user", "content": "how much is it"}, {"role": "assistant", "content": "it is four"}]


def test_tokenize_marks_what_the_assistant_said():
    got = data.tokenize(CHAT, Template(marks=True))
    np.testing.assert_array_equal(got.tokens, [3, 4, 2, 2, 2, 2, 4])
    np.testing.assert_array_equal(got.answer, [0, 0, 0, 0, 1, 1, 1])


def test_tokenize_refuses_a_template_without_marks():
    with pytest.raises(ValueError, match="generation"):
        data.tokenize(CHAT, Template(marks=False))


def test_pack_keeps_every_conversation_whole_and_once():
    examples = [example(100 * i, size) for i, size in enumerate([5, 9, 3, 7, 4, 6], start=1)]
    rows = data.pack(examples, length=12, seed=0)
    first_of_row = {int(row[0]) for row in rows.tokens}
    expected = np.concatenate([e.tokens if int(e.tokens[0]) in first_of_row else e.tokens[1:] for e in examples])
    assert sorted(rows.tokens[rows.filled]) == sorted(expected)
    assert not rows.tokens[~rows.filled].any() and not rows.answer[~rows.filled].any()
    assert rows.answer.sum() == sum(e.answer.sum() for e in examples)


def test_pack_cuts_what_is_longer_than_a_row():
    rows = data.pack([example(1, 20)], length=8, seed=0)
    np.testing.assert_array_equal(rows.tokens, [np.arange(1, 9)])


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
    with pytest.raises(ValueError, match="8 rows was asked for, but there are only 7"):
        next(rows.batches(8, seed=0))
