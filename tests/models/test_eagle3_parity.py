"""EAGLE-3 heads with each flag against an independent PyTorch writing: over true features and over own outputs."""

import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_cases import HEADS3, PROMPTS, ROWS, STEPS, VOCABULARY, Case, head3_inputs, head3_state
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import load_head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.ops import LayerRows

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", HEADS3, ids=str)
def test_logits_and_drafts(case: Case, source: str):
    expected, (whole, drafted, likeliest) = answers(case, source), ours(case)
    np.testing.assert_allclose(whole, expected["whole"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(drafted, expected["drafted"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(likeliest, expected["likeliest"])


@functools.cache
def ours(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `eagle3_torch.answers` gives, from a checkpoint on disk."""
    target = LM.init(_target_of(case), jax.random.key(0))
    tokens, streams, table = head3_inputs(case)
    if case.entries["hidden_size"] == target.config.hidden_size:
        target.params["embed_tokens"] = {"embedding": jnp.asarray(table)}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_file(head3_state(case), folder / "model.safetensors")
        entries = {key: value for key, value in case.entries.items() if key != "own_embedding"}  # the tensor tells
        (folder / "config.json").write_text(json.dumps(entries))
        head = load_head(folder, target)
    assert isinstance(head, Head3)
    return jax.device_get(jax.jit(_run)(head, target, tokens, streams))


def _target_of(case: Case) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=case.entries.get("target_hidden_size", case.entries["hidden_size"]),
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
    )


def _run(head: Head3, target: LM, tokens: jax.Array, streams: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """True slots go to the cache; the outputs that follow each other stay beside it."""
    embeddings = head.embed(target, tokens[:, 1:])
    taps = tuple(jnp.split(streams[:, :-1], 3, axis=-1))
    features = head.features(taps[-1], taps)
    whole = head.logits(target, head.causal(embeddings, features))

    lengths, row, longest = jnp.array(PROMPTS, jnp.int32), np.arange(ROWS), max(PROMPTS)
    positions = jnp.broadcast_to(jnp.arange(longest, dtype=jnp.int32)[None], (ROWS, longest))
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((longest, longest), bool))[None], (ROWS, longest, longest))
    empty = head.empty_cache(ROWS, longest)
    out, kv = head.forward(embeddings[:, :longest], features[:, :longest], positions, chain, empty)
    cache = empty.commit(kv, lengths)

    drafted = [out[row, lengths - 1][:, None]]
    beside: tuple[LayerRows, ...] = ()
    for step in range(STEPS - 1):
        at = lengths[:, None] + step
        before = lengths[:, None] + jnp.arange(step, dtype=jnp.int32)[None] if beside else None
        visible = jnp.ones((ROWS, 1, step + 1), bool)
        embedding = embeddings[row, at[:, 0]][:, None]
        out, own = head.forward(embedding, drafted[-1], at, visible, cache, beside, before)
        drafted.append(out)
        beside = tuple(map(_append, beside, own)) if beside else own
    outputs = jnp.concatenate(drafted, axis=1)
    return whole, outputs, head.target_ids(jnp.argmax(head.logits(target, outputs), axis=-1))


def _append(old: LayerRows, new: LayerRows) -> LayerRows:
    return jax.tree.map(lambda rows, more: jnp.concatenate([rows, more], axis=2), old, new)
