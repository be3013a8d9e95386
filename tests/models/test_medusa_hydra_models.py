"""Medusa and Hydra heads against numpy, and over whole texts against token by token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.heads import HydraConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models import layout
from eagle_jax.models.heads import Heads, Hydra, Medusa
from eagle_jax.models.lm import LM, causal
from eagle_jax.testing import TINY

LAYER = dataclasses.replace(TINY, num_hidden_layers=1)
SIZES = {"hidden_size": 32, "vocab_size": 61, "num_heads": 3, "num_layers": 2}


def heads(kind: str) -> Heads:
    """Heads whose weights, biases included, are not small."""
    if kind == "medusa":
        made: Heads = Medusa.init(MedusaConfig(**SIZES), jax.random.key(0))
    else:
        prefix = LAYER if kind == "hydra++" else None
        made = Hydra.init(HydraConfig(**SIZES, prefix=prefix), jax.random.key(0))
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda p: jnp.asarray(draw(p.shape), p.dtype) / 4, made.params)
    return dataclasses.replace(made, params=params)


def by_hand(params: dict, level: int, x: np.ndarray) -> np.ndarray:
    """Logits of one head, in float64."""

    def affine(x: np.ndarray, part: dict) -> np.ndarray:
        return x @ np.asarray(part["weight"], np.float64).T + np.asarray(part.get("bias", 0.0), np.float64)

    head = params[f"heads_{level}"]
    for i in range(SIZES["num_layers"]):
        block = head[f"layers_{i}"]
        through = affine(x, block["linear"])
        skip = affine(x, block["res_connection"]) if "res_connection" in block else x
        x = skip + through / (1 + np.exp(-through))
    return affine(x, head["lm_head"])


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_logits_are_those_of_numpy(kind: str):
    head = heads(kind)
    draw = np.random.default_rng(1).standard_normal
    hidden, embeddings = (draw((2, 5, 32)).astype(np.float32) for _ in range(2))
    read = head.over_text(jnp.asarray(hidden), jnp.asarray(embeddings))
    assert [x.shape[1] for x in read] == [5, 4, 3]
    for level, x in enumerate(read):
        for slot in range(5 - level):
            path = [embeddings[:, slot + i] for i in range(level + 1)] if kind == "hydra" else []
            expected = np.concatenate([hidden[:, slot], *path], axis=-1)
            np.testing.assert_array_equal(x[:, slot], expected)
        np.testing.assert_allclose(
            head.logits(level, x), by_hand(head.params, level, np.asarray(x, np.float64)), rtol=2e-5, atol=2e-5
        )


def test_the_layer_before_the_heads_is_a_llama_of_one_layer():
    """Its output is what a target with the same layer makes of tokens whose embeddings are those hidden states."""
    head = heads("hydra++")
    assert isinstance(head, Hydra)
    hidden = jnp.asarray(np.random.default_rng(2).standard_normal((1, 6, 32)), jnp.float32)
    params = head.params["prefix"] | {"embed_tokens": {"embedding": hidden[0]}}
    llama: LlamaConfig = dataclasses.replace(LAYER, vocab_size=6, tie_word_embeddings=True)
    expected = LM(params=params, config=llama).causal(jnp.arange(6, dtype=jnp.int32)[None]).hidden
    read = head.over_text(hidden, jnp.zeros_like(hidden))
    np.testing.assert_allclose(read[0][..., :32], expected, rtol=1e-5, atol=1e-6)
    # row by row through the cache, and with weights as they lie for decoding
    laid = dataclasses.replace(head, params=layout.for_decoding(jax.tree.map(jnp.copy, head.params), head.head_dim))
    cache = laid.empty_cache(1, 8)
    for row in range(6):
        positions, visible = causal(1, 1)
        out, kv = laid.read(hidden[:, row : row + 1], positions + row, visible, cache)
        cache = cache.write(kv, cache.length, cache.length + 1)
        np.testing.assert_allclose(out[0, 0], expected[0, row], rtol=1e-4, atol=1e-5)


def test_without_a_layer_hidden_states_are_read_as_they_are():
    head = heads("hydra")
    assert isinstance(head, Hydra)
    hidden, cache = jnp.ones((2, 1, 32)), head.empty_cache(2, 4)
    read, kv = head.read(hidden, *causal(2, 1), cache)
    np.testing.assert_array_equal(read, hidden)
    assert cache.write(kv, cache.length, cache.length + 1).length.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_heads": 0}, "num_heads=0; expected at least 1"),
        ({"prefix": TINY}, "2 layers of width 32; expected one of width 32"),
        ({"prefix": dataclasses.replace(LAYER, hidden_size=16)}, "1 layers of width 16; expected one of width 32"),
    ],
)
def test_configs_that_cannot_be(change: dict, words: str):
    with pytest.raises(ValueError, match=words):
        HydraConfig(**(SIZES | change))
