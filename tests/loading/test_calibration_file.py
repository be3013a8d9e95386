"""`calibration.json`: what is written is read back, and what cannot be is refused."""

import json

import numpy as np
import pytest

from eagle_jax.decoding.calibration import AS_DRAFTED, DEPTHS, LOG_ODDS, Prior
from eagle_jax.loading.calibration import NAME, read_prior, write_prior


def test_what_is_written_is_read(tmp_path):
    assert read_prior(tmp_path) is None
    tables = np.sort(np.random.default_rng(0).random((2, DEPTHS, len(LOG_ODDS))), axis=2).astype(np.float32)
    write_prior(tmp_path, Prior(*tables))
    found = read_prior(tmp_path)
    np.testing.assert_allclose([found.greedy, found.sampled], tables, atol=1e-4)


def changed(**entries):
    return lambda content: content | entries


@pytest.mark.parametrize(
    "change, sentence",
    [
        (changed(version=2), "version=2, expected 1"),
        (changed(log_odds=[1, 2]), "log_odds"),
        (changed(greedy=None), "a greedy that is no table of 8 rows"),
        (changed(sampled=[[0.5]]), "a sampled that is no table"),
        (changed(greedy=[["half"] * len(LOG_ODDS)] * DEPTHS), "a greedy that is no table"),
        (changed(greedy=[[1.5] * len(LOG_ODDS)] * DEPTHS), "probabilities"),
        (changed(greedy=[[float("nan")] * len(LOG_ODDS)] * DEPTHS), "probabilities"),
        (changed(greedy=[list(range(len(LOG_ODDS), 0, -1))] * DEPTHS), "none below the one before"),
        (lambda content: [content], "expected a JSON object"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, sentence):
    path = write_prior(tmp_path, AS_DRAFTED)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=sentence) as refused:
        read_prior(tmp_path)
    assert NAME in str(refused.value)
