"""Draft vocabularies are what answers are made of."""

import numpy as np
import pytest

from eagle_jax.training.data import Rows
from eagle_jax.training.vocabulary import most_frequent_tokens

TOKENS = np.array([[7, 7, 3, 5, 5, 5, 1, 0], [7, 3, 3, 5, 2, 0, 0, 0]], np.int32)
ANSWER = np.array([[0, 0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0, 0, 0]], bool)
ROWS = Rows(TOKENS, ANSWER, TOKENS > 0)


def test_the_most_frequent_tokens_of_answers_ascend():
    ids, share = most_frequent_tokens(ROWS, 3, vocab_size=9)  # 5 four times, 3 three times, then 1 and 2 once each
    np.testing.assert_array_equal(ids, [1, 3, 5])
    assert share == pytest.approx(8 / 9)


def test_all_tokens_are_the_whole_vocabulary():
    ids, share = most_frequent_tokens(ROWS, 9, vocab_size=9)
    np.testing.assert_array_equal(ids, np.arange(9))
    assert share == 1


@pytest.mark.parametrize("size", [0, 10])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"draft_vocab_size={size}; expected 1 to"):
        most_frequent_tokens(ROWS, size, vocab_size=9)
