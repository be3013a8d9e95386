"""Measuring how often guesses are right: against all fits, and on a head that says what is not so."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from eagle_jax.converters import save_head
from eagle_jax.decoding.calibration import AS_DRAFTED, DEPTHS, LOG_ODDS
from eagle_jax.loading.calibration import read_prior
from eagle_jax.loading.model import Model
from eagle_jax.testing import synthetic_pair
from eagle_jax.tuning.calibrate import STRENGTH, calibrate, calibrate_head, fit_rates

TARGET, HEAD = synthetic_pair(strength=0.3, error=0.15)


def pooled(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The best fit that never falls, out of the means of all ways to cut the values into pieces."""
    fits = []
    for cuts in itertools.product([False, True], repeat=len(values) - 1):
        pieces = np.cumsum([0, *cuts])
        means = np.array([np.average(values[pieces == p], weights=weights[pieces == p]) for p in pieces])
        if (np.diff(means) >= 0).all():
            fits.append(means)
    return min(fits, key=lambda fit: (weights * (fit - values) ** 2).sum())


def test_the_fit_is_the_best_of_those_that_never_fall(monkeypatch):
    rng = np.random.default_rng(0)
    own = np.sort(rng.random((3, 8)), axis=1)
    guessed = rng.integers(0, 60, own.shape).astype(float)
    accepted = np.floor(guessed * rng.random(own.shape))
    found = fit_rates(guessed, accepted, own)
    weight = guessed + STRENGTH
    for row in range(3):
        mean = (accepted[row] + STRENGTH * own[row]) / weight[row]
        assert (np.diff(mean) < 0).any(), "nothing was pooled"
        np.testing.assert_allclose(found[row], pooled(mean, weight[row]), atol=1e-6)


def test_without_guesses_the_head_is_believed():
    nothing = np.zeros((DEPTHS, len(LOG_ODDS)))
    np.testing.assert_allclose(fit_rates(nothing, nothing, AS_DRAFTED.greedy), AS_DRAFTED.greedy, atol=1e-6)


@pytest.mark.proof
def test_a_head_that_says_less_than_it_knows_is_believed_more():
    """Half its output makes a head doubt what it is right about."""
    doubting = dataclasses.replace(HEAD, params=jax.tree.map(lambda leaf: leaf * 0.6, HEAD.params))
    model = Model(target=TARGET, head=doubting, tokenizer=None, stop_ids=(), context=256)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, TARGET.config.vocab_size, 8).tolist() for _ in range(6)]
    seen = []
    prior = calibrate(model, prompts, max_new_tokens=40, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 12), (12, 12)]
    for table in (prior.greedy, prior.sampled):
        assert table.shape == AS_DRAFTED.greedy.shape and (np.diff(table) >= 0).all()
    raised = prior.greedy[0] - AS_DRAFTED.greedy[0]
    assert abs(raised).max() > 0.1, "its own probabilities were as good"


def test_what_cannot_be_calibrated_is_refused():
    bare = Model(target=TARGET, head=None, tokenizer=None, stop_ids=(), context=256)
    with pytest.raises(ValueError, match="has no head"):
        calibrate(bare, [[1, 2]])
    with pytest.raises(ValueError, match="no prompts"):
        calibrate(dataclasses.replace(bare, head=HEAD), [])


@pytest.mark.proof
def test_what_was_found_is_kept_with_the_head(tmp_path):
    save_head(HEAD, tmp_path / "head")
    model = Model(target=TARGET, head=HEAD, tokenizer=None, stop_ids=(), context=256)
    better = calibrate_head(model, "toy", tmp_path / "head", [[1, 2, 3]] * 2)
    kept = read_prior(tmp_path / "head")
    np.testing.assert_allclose(kept.greedy, better.calibration.greedy, atol=1e-4)
