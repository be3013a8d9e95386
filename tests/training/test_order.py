"""The order of rows: every row once an epoch, another order each epoch, exact from any position."""

import numpy as np
import pytest

from eagle_jax.training.data import Rows
from eagle_jax.training.order import RowOrder


def rows(first: int = 0) -> Rows:
    tokens = np.arange(first, first + 14, dtype=np.int32).reshape(7, 2)
    return Rows(tokens, np.ones((7, 2), bool), np.ones((7, 2), bool))


def test_every_epoch_has_every_row_once_in_an_order_of_its_own():
    order = RowOrder(rows(), 7, seed=1)
    first, second = next(order), next(order)
    assert sorted(first) == sorted(second) == list(range(7)) and list(first) != list(second)
    assert list(next(RowOrder(rows(), 7, seed=1))) == list(first)
    assert list(next(RowOrder(rows(), 7, seed=2))) != list(first)


def test_batches_cross_from_one_epoch_to_the_next():
    order = RowOrder(rows(), 3, seed=1)
    seen = np.concatenate([next(order) for _ in range(7)])
    assert [sorted(seen[at : at + 7]) for at in (0, 7, 14)] == [list(range(7))] * 3


def test_a_position_continues_where_it_was_taken():
    order = RowOrder(rows(), 3, seed=1)
    for _ in range(4):
        next(order)
    position = order.position
    expected = [list(next(order)) for _ in range(4)]
    again = RowOrder(rows(), 3, seed=1)
    again.restore(position)
    assert [list(next(again)) for _ in range(4)] == expected


def test_a_position_of_other_text_is_refused():
    position = RowOrder(rows(), 3, seed=1).position
    with pytest.raises(ValueError, match="the text is not what the run was started with: 7 rows then, 7 now"):
        RowOrder(rows(first=5), 3, seed=1).restore(position)
    with pytest.raises(ValueError, match=r"\(data.limit was not set and is 5 now\); restore files and settings"):
        RowOrder(rows(first=5), 3, seed=1).restore(position, "data.limit was not set and is 5 now")
    with pytest.raises(ValueError, match="an update takes 8 rows"):
        RowOrder(rows(), 8, seed=1)
