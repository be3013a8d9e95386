"""The largest numbers of rows on the CPU backend, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.ops.cpu import backend
from eagle_jax.ops.cpu.ranking import top_k

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

SIZES = [(1, 1, 1), (2, 7, 3), (3, 16, 16), (4, 33, 1), (5, 100, 10), (1, 1536, 1), (9, 2048, 4), (40, 4096, 10)]


def reference(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted stably by falling number, nan last."""
    order = np.argsort(-np.where(np.isnan(x), -np.inf, x), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(x, order, axis=1), order


@pytest.mark.parametrize(("rows", "size", "count"), SIZES)
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_the_largest_come_first_and_of_equal_ones_the_first(getkey, rows, size, count, step):
    x = np.asarray(jax.random.normal(getkey(), (rows, size)))
    x = np.round(x / step) * step if step else x
    values, where = top_k(jnp.asarray(x), count, 0.0)
    expected, order = reference(x, count)
    np.testing.assert_array_equal(where, order)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(("rows", "size", "count"), SIZES)
@pytest.mark.parametrize("logit_scale", [1.0, 2.0, 0.25])
def test_as_log_probabilities(getkey, rows, size, count, logit_scale):
    x = jax.random.normal(getkey(), (rows, size)) * 8
    values, where = top_k(x, count, logit_scale)
    exact = np.asarray(x, np.float64) * logit_scale
    exact -= np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) + exact.max(1, keepdims=True)
    expected, order = reference(np.asarray(x), count)
    np.testing.assert_array_equal(where, order)
    np.testing.assert_allclose(values, np.take_along_axis(exact, order, axis=1), atol=2e-5)
    assert (values <= 0).all()


def test_what_is_no_number_counts_as_the_least(getkey):
    x = np.array(jax.random.normal(getkey(), (3, 50)))
    x[0, ::2], x[1, 1:] = np.nan, -np.inf
    x[2] = -np.inf
    values, where = top_k(jnp.asarray(x), 30, 0.0)
    _, order = reference(x, 30)
    np.testing.assert_array_equal(where, order)
    np.testing.assert_array_equal(
        values, np.nan_to_num(np.take_along_axis(x, order, axis=1), nan=-np.inf, neginf=-np.inf)
    )


def test_no_more_than_there_are():
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"the {count} largest of 3 numbers; ask for one at least, and at most so"):
            top_k(jnp.zeros((1, 3)), count, 0.0)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_rows_without_a_law_have_no_scores(getkey, broken):
    """As the softmax of nan and infinity is none; -inf alone is a token that cannot come."""
    x = np.array(jax.random.normal(getkey(), (3, 40)))
    x[0, 5], x[1, 5], x[2] = broken, -np.inf, -np.inf
    values, _ = top_k(jnp.asarray(x), 2, 1.0)
    np.testing.assert_array_equal(values[0], -np.inf)
    np.testing.assert_array_equal(values[2], -np.inf)
    assert np.isfinite(values[1]).all()


def test_a_row_is_the_same_to_the_bit_whatever_is_beside_it(getkey):
    x = jax.random.normal(getkey(), (60, 3000))
    together = top_k(x, 10, 2.0)
    for row in (0, 31, 59):
        alone = top_k(x[row : row + 1], 10, 2.0)
        for one, of_all in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], of_all[row])
