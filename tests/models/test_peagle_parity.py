"""P-EAGLE's pass, and an EAGLE-3 draft step with norms of queries and keys, against a plain numpy writing of them.

By hand all rows, those of the text too, go through the layers at once, without a cache; the head reads the text first
and then drafts from its cache.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.heads import Eagle3Config, MaskConfig
from eagle_jax.models.cache import Cache, KVState
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM, causal
from eagle_jax.testing import TINY

TARGET = LM.init(dataclasses.replace(TINY, num_hidden_layers=5), jax.random.key(5))
LAYERS = dataclasses.replace(TINY, num_hidden_layers=2)
MASK = MaskConfig(token_id=60, num_drafted=5)
PLAIN = Eagle3Config(
    layers=LAYERS, taps=(0, 2, 5), target_hidden_size=32, draft_vocab_size=61, own_embedding=True, mask=MASK
)
TEXT = np.random.default_rng(1).integers(0, TINY.vocab_size, 14)  # its last token is the root
MODES: dict[str, dict[str, Any]] = {
    "as published": {},
    "one layer": {"layers": dataclasses.replace(LAYERS, num_hidden_layers=1)},
    "another mask token": {"mask": dataclasses.replace(MASK, token_id=3)},
    "five taps": {"taps": (1, 2, 3, 4, 5)},
    "the target's embedding": {"own_embedding": False},
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "norms of taps": {"fc_norm": True},
    "norm of the output": {"norm_output": True},
    "draft vocabulary": {"draft_vocab_size": 20},
    "window": {"layers": dataclasses.replace(LAYERS, sliding_window=3)},
    "norms of heads": {"layers": dataclasses.replace(LAYERS, qk_norm=True)},
    "biases": {"layers": dataclasses.replace(LAYERS, attention_bias=True, mlp_bias=True)},
}


def head_with(**changes: Any) -> Head3:
    """A head whose weights are large enough for every part of it to matter."""
    head = Head3.init(dataclasses.replace(PLAIN, **changes), jax.random.key(2))
    leaves, tree = jax.tree.flatten(head.params)
    draws = [np.random.default_rng(i).standard_normal(leaf.shape, np.float32) for i, leaf in enumerate(leaves)]
    random = [jnp.asarray(0.2 * draw + (leaf.ndim == 1)) for draw, leaf in zip(draws, leaves, strict=True)]
    return dataclasses.replace(head, params=jax.tree.unflatten(tree, random))


@jax.jit
def taps_of_text(tokens: jax.Array) -> tuple[jax.Array, ...]:
    return TARGET.causal(tokens, tuple(range(6))).taps


TAPS = taps_of_text(jnp.asarray(TEXT[None, :-1], jnp.int32))


@jax.jit
def read(head: Head3) -> tuple[jax.Array, Cache]:
    """The head's output at the last row of the text, and its cache: row i holds token i's taps and token i + 1."""
    tokens, following = (jnp.asarray(part[None], jnp.int32) for part in (TEXT[:-1], TEXT[1:]))
    taps, cache = tuple(TAPS[tap] for tap in head.taps), head.empty_cache(1, 20)
    rows = head.embed(TARGET, following), head.features(taps[0], taps)
    out, kv = head.forward(*rows, *causal(*tokens.shape), cache)
    return out[:, -1], cache.write(kv, jnp.zeros(1, jnp.int32), jnp.full(1, tokens.shape[1], jnp.int32))


@functools.partial(jax.jit, static_argnums=4)
def draft(head: Head3, out: jax.Array, length: jax.Array, cache: Cache, depth: int) -> jax.Array:
    return head.draft(TARGET, out, length, cache, depth)[0]


@functools.cache
def drafted(mode: str, depth: int = MASK.num_drafted) -> np.ndarray:
    out, cache = read(head_with(**MODES[mode]))
    return np.asarray(draft(head_with(**MODES[mode]), out, cache.length, cache, depth))


def rms(x: np.ndarray, norm: Any) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + LAYERS.rms_norm_eps) * norm["scale"]


def rotated(x: np.ndarray) -> np.ndarray:
    """Heads `[n, h, c]` of rows at positions 0, 1, ..."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * LAYERS.rope.theta ** -(np.arange(half) / half)
    one, two = x[..., :half], x[..., half:]
    return np.concatenate(
        [one * np.cos(angle) - two * np.sin(angle), two * np.cos(angle) + one * np.sin(angle)], axis=-1
    )


def linear(p: Any, x: np.ndarray) -> np.ndarray:
    return x @ p["weight"].T + p.get("bias", 0)


def attention(p: Any, x: np.ndarray, window: int | None) -> np.ndarray:
    size = LAYERS.head_dim
    q, k, v = (linear(p[f"{name}_proj"], x).reshape(len(x), -1, size) for name in "qkv")
    if "q_norm" in p:
        q, k = rms(q, p["q_norm"]), rms(k, p["k_norm"])
    q, k = rotated(q), rotated(k)
    k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    ahead = np.arange(len(x))[:, None] - np.arange(len(x))[None]
    seen = (ahead >= 0) & (ahead < (window or len(x)))
    scores = np.where(seen, np.einsum("nhc,mhc->hnm", q, k) / size**0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return linear(p["o_proj"], np.einsum("hnm,mhc->nhc", weights, v).reshape(len(x), -1))


def by_hand(head: Head3, embeddings: np.ndarray, features: np.ndarray) -> np.ndarray:
    """What leaves the last layer at rows that stand one behind the other."""
    c, p = head.config, jax.tree.map(np.asarray, head.params)
    for i in range(c.layers.num_hidden_layers):
        own = p[f"layers_{i}"]
        if i == 0:
            normed = rms(features, own["hidden_norm"])
            x = normed if c.norm_before_residual else features
            entering = np.concatenate([rms(embeddings, own["input_layernorm"]), normed], axis=-1)
        else:
            entering = rms(x, own["input_layernorm"])
        x = x + attention(own["self_attn"], entering, c.layers.sliding_window)
        y, mlp = rms(x, own["post_attention_layernorm"]), own["mlp"]
        gate = linear(mlp["gate_proj"], y)
        x = x + linear(mlp["down_proj"], gate / (1 + np.exp(-gate)) * linear(mlp["up_proj"], y))
    return rms(x, p["norm"]) if c.norm_output else x


def embedded(head: Head3, tokens: list[int]) -> np.ndarray:
    own = head.config.own_embedding
    return np.asarray(head.params["embed_tokens"]["embedding"] if own else TARGET.table)[tokens]


def fused(head: Head3, taps: np.ndarray) -> np.ndarray:
    """`fc` of taps side by side."""
    p = jax.tree.map(np.asarray, head.params)
    if head.config.norm_before_fc:
        taps = rms(taps, p["input_norm"])
    if head.config.fc_norm:
        parts = np.split(taps, len(head.taps), axis=-1)
        taps = np.concatenate([rms(part, p[f"fc_norm_{i}"]) for i, part in enumerate(parts)], axis=-1)
    return linear(p["fc"], taps)


def features_of_text(head: Head3) -> np.ndarray:
    return fused(head, np.concatenate([np.asarray(TAPS[tap][0]) for tap in head.taps], axis=-1))


def logits(head: Head3, out: np.ndarray) -> np.ndarray:
    p = jax.tree.map(np.asarray, head.params)
    return linear(p["lm_head"], out if head.config.norm_output else rms(out, p["norm"]))


def pass_by_hand(head: Head3) -> np.ndarray:
    mask, count = head.config.mask, MASK.num_drafted - 1
    assert mask is not None
    features = [features_of_text(head), fused(head, np.tile(np.asarray(head.params["mask_hidden"]), (count, 1)))]
    rows = embedded(head, [*TEXT[1:].tolist(), *[mask.token_id] * count]), np.concatenate(features)
    return logits(head, by_hand(head, *rows)[-count - 1 :])


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_one_pass_by_hand(mode: str):
    """And every option changes it, but the norm of the output, which only a next step would read."""
    head = head_with(**MODES[mode])
    got, expected = drafted(mode), pass_by_hand(head)
    assert got.shape == (5, head.draft_vocab_size) and np.ptp(expected, axis=0).max() > 0.01
    np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())
    if mode not in ("as published", "draft vocabulary", "norm of the output"):
        plain = drafted("as published")
        assert np.abs(plain - got).max() > 1e-3 * np.abs(plain).max()


def test_a_tree_that_is_less_deep_has_fewer_mask_rows():
    for depth in (1, 2, 4):
        expected = drafted("as published")[:depth]
        np.testing.assert_allclose(drafted("as published", depth), expected, atol=1e-5)


def test_what_mask_rows_read():
    """The parameter, the text in its order, their own positions; nothing of the cache behind the text."""
    head = head_with()
    out, cache = read(head)
    expected = draft(head, out, cache.length, cache, 5)
    layers = tuple(KVState(layer.k, layer.v.at[:, :, len(TEXT) - 1 :].set(9.0)) for layer in cache.kv)
    dirty = dataclasses.replace(cache, layers=layers)
    np.testing.assert_array_equal(draft(head, out, cache.length, dirty, 5), expected)
    hidden = dataclasses.replace(head, params=head.params | {"mask_hidden": -head.params["mask_hidden"]})
    changed = (
        hidden.draft(TARGET, out, cache.length, cache, 5)[0],
        head.draft(TARGET, out, cache.length + 1, cache, 5)[0],
    )
    for other in changed:
        np.testing.assert_array_equal(other[0], expected[0])  # the last row of the text is no mask
        assert (np.abs(other - expected).max(axis=1)[1:] > 1e-3).all()


def test_a_draft_step_with_norms_of_heads():
    """As DeepSpec's heads are: five taps, one layer, the whole vocabulary; the second step reads the first's output."""
    layers = dataclasses.replace(LAYERS, num_hidden_layers=1, qk_norm=True)
    head = head_with(layers=layers, taps=(1, 2, 3, 4, 5), mask=None)
    out, cache = read(head)
    embedding = head.embed(TARGET, jnp.full((1, 1), 7, jnp.int32))
    got, _ = jax.jit(Head3.forward)(
        head, embedding, out[:, None], cache.length[:, None], jnp.ones((1, 1, 1), bool), cache
    )
    text = embedded(head, TEXT[1:].tolist()), features_of_text(head)
    first = by_hand(head, *text)[-1:]
    rows = (np.concatenate([both, row]) for both, row in zip(text, (embedded(head, [7]), first), strict=True))
    expected = logits(head, by_hand(head, *rows)[-1:])
    np.testing.assert_allclose(head.logits(TARGET, got)[0], expected, atol=2e-5 * np.abs(expected).max())
    unit = {name: {"scale": jnp.ones(8)} for name in ("q_norm", "k_norm")}
    attention = head.params["layers_0"]["self_attn"] | unit
    params = head.params | {"layers_0": head.params["layers_0"] | {"self_attn": attention}}
    assert np.abs(by_hand(dataclasses.replace(head, params=params), *text)[-1:] - first).max() > 1e-2
