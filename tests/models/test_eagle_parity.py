"""Draft heads against an independent PyTorch writing: over true features, and over their own guesses."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_cases import HEADS, PROMPTS, ROWS, STEPS, VOCABULARY, Case, head_shapes, rows, weights
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import load_head
from eagle_jax.models.cache import KV
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM

pytestmark = [
    pytest.mark.parity,
    pytest.mark.parametrize("source", SOURCES),
    pytest.mark.parametrize("case", HEADS, ids=str),
]

TOLERANCE = 1e-4
SLOTS = PROMPTS[-1] + STEPS


@pytest.fixture(scope="module")
def target() -> LM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
    )
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


def test_own_guesses_after_rows_of_different_lengths(head: Head, case: Case, source: str):
    got = jax.jit(_draft)(head, *_inputs(case))
    np.testing.assert_allclose(got, answers(case, source)["drafted"], rtol=0, atol=TOLERANCE)


def _draft(head: Head, embeddings: jax.Array, features: jax.Array) -> jax.Array:
    """True slots go to the cache; the guesses that follow each other stay beside it."""
    lengths = jnp.array(PROMPTS, jnp.int32)
    row, longest = np.arange(ROWS), max(PROMPTS)
    positions = jnp.broadcast_to(jnp.arange(longest, dtype=jnp.int32)[None], (ROWS, longest))
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((longest, longest), bool))[None], (ROWS, longest, longest))
    empty = head.empty_cache(ROWS, longest)
    out, kv = head.forward(embeddings[:, :longest], features[:, :longest], positions, chain, empty)
    cache = empty.commit(kv, lengths)

    guesses = [out[row, lengths - 1][:, None]]
    beside: tuple[KV, ...] = ()
    for step in range(STEPS - 1):
        at = lengths[:, None] + step
        before = lengths[:, None] + jnp.arange(step, dtype=jnp.int32)[None] if beside else None
        visible = jnp.ones((ROWS, 1, step + 1), bool)
        token = embeddings[row, at[:, 0]][:, None]
        out, own = head.forward(token, guesses[-1], at, visible, cache, beside, before)
        guesses.append(out)
        beside = tuple(map(_append, beside, own)) if beside else own
    return jnp.concatenate(guesses, axis=1)


def _append(old: KV, new: KV) -> KV:
    return jnp.concatenate([old[0], new[0]], axis=2), jnp.concatenate([old[1], new[1]], axis=2)
