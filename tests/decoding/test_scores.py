"""The best tokens by machine code and by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.scores import Scores, best
from eagle_jax.ops import VARIABLE, argmax, top_k


@pytest.fixture(params=["cpu", "xla"])
def way(request, monkeypatch):
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.mark.parametrize("shape", [(64,), (2, 3, 500)])
def test_the_best_of_scores_are_those_of_all(getkey, way, shape):
    scores = Scores(jax.random.normal(getkey(), shape) * 4)
    values, tokens = jax.jit(lambda scores: scores.best(5))(scores)
    expected, order = jax.lax.top_k(jax.nn.log_softmax(scores.logits), 5)
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(values, expected, atol=1e-5)
    np.testing.assert_allclose(scores.of_all(), jax.nn.log_softmax(scores.logits), atol=1e-6)


def test_scores_of_some_rows(getkey, way):
    scores = Scores(jax.random.normal(getkey(), (4, 3, 20)))
    assert scores[:, 0].shape == (4, 20)
    for some, of_all in zip(scores[:, 0].best(2), scores.best(2), strict=True):
        np.testing.assert_array_equal(some, of_all[:, 0])


def test_what_is_no_score_is_the_last(way):
    values, tokens = best(jnp.array([[0.5, jnp.nan, -1.0, -jnp.inf]]), 3)
    np.testing.assert_array_equal(values, [[0.0, -1.0, -jnp.inf]])
    np.testing.assert_array_equal(tokens[:, :2], [[0, 2]])
    values, _ = Scores(jnp.array([[jnp.nan, 1.0]])).best(1)
    np.testing.assert_array_equal(values, -jnp.inf)


def test_the_first_of_the_largest(getkey, way):
    x = jnp.round(jax.random.normal(getkey(), (2, 5, 333)) * 2)
    np.testing.assert_array_equal(argmax(x), jnp.argmax(x, axis=-1))
    for ours, theirs in zip(top_k(x, 7), jax.lax.top_k(x, 7), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_over_requests(getkey, way):
    """Under `vmap`, as whoever drafts may use it."""
    x = jax.random.normal(getkey(), (3, 4, 50))
    np.testing.assert_array_equal(jax.vmap(argmax)(x), argmax(x))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_of_other_dtypes(getkey, way, dtype):
    x = jax.random.normal(getkey(), (3, 50)).astype(dtype)
    np.testing.assert_array_equal(argmax(x), jnp.argmax(x, axis=-1))
