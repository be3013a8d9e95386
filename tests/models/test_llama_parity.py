"""Targets against transformers: same folder, same logits, however the text is cut."""

import dataclasses
import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_cases import LENGTH, PROMPTS, ROWS, STEPS, TARGETS, Case, texts, weights
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.converters import config_from_hf, llama, load_target, names
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import LM

pytestmark = [
    pytest.mark.parity,
    pytest.mark.parametrize("source", SOURCES),
    pytest.mark.parametrize("case", TARGETS, ids=str),
]

TOLERANCE = 1e-4
CHUNK = 7


@pytest.fixture
def lm(case: Case) -> LM:
    return _load(case)


@functools.cache
def _load(case: Case) -> LM:
    config = config_from_hf(case.entries)
    shapes = names.expected(llama.rules(config), llama.shapes(config))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_file(weights(case, shapes), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(case.entries))
        return load_target(folder)


@pytest.mark.matrix
def test_whole_text(lm: LM, case: Case, source: str):
    logits = jax.jit(lambda lm, tokens: lm(tokens)[1])(lm, texts(case))
    np.testing.assert_allclose(logits, answers(case, source)["whole"], rtol=0, atol=TOLERANCE)


@pytest.mark.matrix
def test_prefill_in_chunks(lm: LM, case: Case, source: str):
    logits, _ = _prefill(lm, texts(case), np.full(ROWS, LENGTH, np.int32))
    np.testing.assert_allclose(logits, answers(case, source)["whole"], rtol=0, atol=TOLERANCE)


@pytest.mark.matrix
def test_rows_of_different_lengths_token_by_token(lm: LM, case: Case, source: str):
    tokens, lengths = texts(case), np.array(PROMPTS, np.int32)
    _, cache = _prefill(lm, tokens, lengths)
    got = []
    for step in range(STEPS):
        logits, cache = _advance(lm, tokens[np.arange(ROWS), lengths + step][:, None], cache, np.ones(ROWS, np.int32))
        got.append(logits[:, 0])
    np.testing.assert_array_equal(cache.length, lengths + STEPS)
    np.testing.assert_allclose(np.stack(got, 1), answers(case, source)["stepwise"], rtol=0, atol=TOLERANCE)


def _prefill(lm: LM, tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, Cache]:
    """Logits of the prompts `tokens[:, :lengths]`, and the cache after them; short rows sit out the later chunks."""
    cache = dataclasses.replace(lm.empty_cache(ROWS, LENGTH + CHUNK), rope_length=jnp.asarray(lengths))
    chunks = []
    for start in range(0, int(lengths.max()), CHUNK):
        chunk = np.zeros((ROWS, CHUNK), np.int32)
        width = min(CHUNK, tokens.shape[1] - start)
        chunk[:, :width] = tokens[:, start : start + width]
        count = np.clip(lengths - start, 0, CHUNK).astype(np.int32)
        logits, cache = _advance(lm, chunk, cache, count)
        chunks.append(logits)
    return np.concatenate(chunks, axis=1)[:, : lengths.max()], cache


@jax.jit
def _advance(lm: LM, tokens: jax.Array, cache: Cache, count: jax.Array) -> tuple[jax.Array, Cache]:
    """One pass over a chain of tokens, of which each row keeps the first `count`."""
    n = tokens.shape[1]
    steps = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None], tokens.shape)
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool))[None], (*tokens.shape, n))
    out = lm.forward(tokens, cache.length[:, None] + steps, chain, cache)
    return lm.logits(out.hidden), cache.commit(out.kv, count)
