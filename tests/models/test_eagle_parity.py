"""Draft heads against an independent PyTorch writing: over true features, and over their own guesses."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from head_steps import drafted
from parity_cases import HEADS, PROMPTS, STEPS, VOCABULARY, Case, head_shapes, rows, weights
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.converters import load_head
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

pytestmark = [
    pytest.mark.parity,
    pytest.mark.parametrize("source", SOURCES),
    pytest.mark.parametrize("case", HEADS, ids=str),
]

TOLERANCE = 1e-4
SLOTS = PROMPTS[-1] + STEPS


@pytest.fixture(scope="module")
def target() -> LM:
    config = dataclasses.replace(TINY, vocab_size=VOCABULARY)
    return LM.init(config, jax.random.key(0))


@pytest.fixture
def head(case: Case, target: LM, tmp_path: pathlib.Path) -> Head:
    save_file(weights(case, head_shapes(case.entries)), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(case.entries))
    return load_head(tmp_path, target)


def _inputs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    embeddings, features = np.split(rows(case, SLOTS, 64), 2, axis=-1)
    return embeddings, features


def test_true_features(head: Head, case: Case, source: str):
    got = jax.jit(Head.causal)(head, *_inputs(case))
    np.testing.assert_allclose(got, answers(case, source)["whole"], rtol=0, atol=TOLERANCE)


@pytest.mark.matrix
def test_own_guesses_after_rows_of_different_lengths(head: Head, case: Case, source: str):
    got = jax.jit(drafted)(head, *_inputs(case))
    np.testing.assert_allclose(got, answers(case, source)["drafted"], rtol=0, atol=TOLERANCE)
