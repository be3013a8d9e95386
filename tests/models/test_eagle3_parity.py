"""EAGLE-3 heads with each flag against an independent PyTorch writing: over true features and over own outputs."""

import dataclasses
import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from head_steps import drafted
from parity_cases import HEADS3, VOCABULARY, Case, head3_inputs, head3_state
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.converters import load_head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4


@pytest.mark.matrix
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", HEADS3, ids=str)
def test_logits_and_drafts(case: Case, source: str):
    expected, (whole, own, likeliest) = answers(case, source), ours(case)
    np.testing.assert_allclose(whole, expected["whole"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(own, expected["drafted"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(likeliest, expected["likeliest"])


@functools.cache
def ours(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `eagle3_torch.answers` gives, from a checkpoint on disk."""
    width = case.entries.get("target_hidden_size", case.entries["hidden_size"])
    target = LM.init(dataclasses.replace(TINY, vocab_size=VOCABULARY, hidden_size=width), jax.random.key(0))
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


def _run(head: Head3, target: LM, tokens: jax.Array, streams: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    embeddings = head.embed(target, tokens[:, 1:])
    taps = tuple(jnp.split(streams[:, :-1], 3, axis=-1))
    features = head.features(taps[-1], taps)
    whole = head.logits(target, head.causal(embeddings, features))
    outputs = drafted(head, embeddings, features)
    return whole, outputs, head.target_ids(jnp.argmax(head.logits(target, outputs), axis=-1))
