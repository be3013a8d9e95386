"""The DFlash head against a plain numpy writing of it: one whole block, with every option on and off."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.dflash import ConvolutionConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import Rope
from eagle_jax.models.cache import KVState
from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

TARGET = LM.init(TINY, jax.random.key(5))
LAYERS = dataclasses.replace(TINY, num_hidden_layers=3, qk_norm=True)
PLAIN = DFlashConfig(layers=LAYERS, taps=(2, 0, 1), target_hidden_size=32, block_size=5, mask_token_id=60)
TEXT = np.random.default_rng(1).integers(0, TINY.vocab_size, 14)  # its last token is the root
MODES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal": {"causal_layers": (0, 1, 2)},
    "causal in one layer": {"causal_layers": (1,)},
    "sample from anchor": {"sample_from_anchor": True},
    "window": {"layers": dataclasses.replace(LAYERS, sliding_window=3)},
    "window in one layer": {"layers": dataclasses.replace(LAYERS, sliding_window=3, full_attention_layers=(0, 2))},
    "own embedding": {"own_embedding": True},
    "own embedding of masks": {"own_mask_embedding": True, "input_embedding_scale": 3.0},
    "own output": {"draft_vocab_size": 61},
    "draft vocabulary": {"draft_vocab_size": 20},
    "scales and cap": {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 0.02},
    "yarn": {
        "layers": dataclasses.replace(
            LAYERS, rope=Rope(theta=500.0, kind="yarn", factor=4.0, original_max_position_embeddings=8)
        )
    },
    "convolutions": {"convolution": ConvolutionConfig(2, 8)},
    "long convolutions, causal": {"convolution": ConvolutionConfig(3, 16), "causal_layers": (0, 1, 2)},
    "no norm of heads, biases": {"layers": dataclasses.replace(LAYERS, qk_norm=False, attention_bias=True)},
}


def head_with(**changes: Any) -> DFlash:
    """A head whose weights are large enough for every part of it to matter."""
    head = DFlash.init(dataclasses.replace(PLAIN, **changes), jax.random.key(2))
    leaves, tree = jax.tree.flatten(head.params)
    draws = [np.random.default_rng(i).standard_normal(leaf.shape, np.float32) for i, leaf in enumerate(leaves)]
    random = [jnp.asarray(0.2 * draw + (leaf.ndim == 1)) for draw, leaf in zip(draws, leaves, strict=True)]
    return dataclasses.replace(head, params=jax.tree.unflatten(tree, random))


def block_of(head: DFlash, depth: int | None = None) -> BlockOutput:
    """One block below the root, with the text's context in a cache that is longer than it."""
    length = len(TEXT) - 1
    taps = TARGET.causal(jnp.asarray(TEXT[None, :-1], jnp.int32), head.taps).taps
    cache = head.empty_cache(1, 20)
    kv = head.context(taps, jnp.arange(length, dtype=jnp.int32)[None], cache)
    cache = cache.write(kv, jnp.zeros(1, jnp.int32), jnp.full(1, length, jnp.int32))
    return head.draft(TARGET, jnp.asarray(TEXT[-1:], jnp.int32), cache.length, cache, depth or head.num_drafted)


def drafted(head: DFlash, depth: int | None = None) -> np.ndarray:
    """The block's logits."""
    return np.asarray(block_of(head, depth).logits[0])


def rms(x: np.ndarray, scale: Any, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * np.asarray(scale)


def rotated(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """Heads `[n, h, c]` at their positions; YaRN as transformers writes it."""
    size = x.shape[-1]
    base = rope.theta ** -(np.arange(0, size, 2) / size)
    if rope.kind == "yarn":
        original = rope.original_max_position_embeddings
        find = lambda turns: size * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(rope.theta))  # noqa: E731
        low, high = max(np.floor(find(rope.beta_fast)), 0), min(np.ceil(find(rope.beta_slow)), size - 1)
        ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
        base = base / rope.factor * ramp + base * (1 - ramp)
    angle = positions[:, None] * base[None]
    cos, sin = (np.tile(part, 2)[:, None] for part in (np.cos(angle), np.sin(angle)))
    first, second = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-second, first], axis=-1) * sin


def convolved(own: dict, side: int, x: np.ndarray, read: np.ndarray, group_size: int) -> np.ndarray:
    """A short convolution of slots `x`, whose kernel is made of the sublayer's input `read`; slot by slot."""
    base, channels = own["base_kernel"], x.shape[1]
    dynamic = read @ own["kernel_projection"]["weight"].T
    taps, y = base.shape[1], np.zeros_like(x)
    for t in range(len(x)):
        for j in range(min(taps, t + 1)):
            for channel in range(channels):
                column = (side * taps + j) * (channels // group_size) + channel // group_size
                y[t, channel] += (base[side, j, channel] + dynamic[t, column]) * x[t - j, channel]
    return y


def by_hand(head: DFlash) -> np.ndarray:
    """The logits of one block, written out."""
    return read_by_hand(head, out_by_hand(head))


def read_by_hand(head: DFlash, out: np.ndarray) -> np.ndarray:
    """Logits of slots' outputs."""
    c = head.config
    matrix = TARGET.output_matrix if c.draft_vocab_size is None else head.params["lm_head"]["weight"]
    logits = out @ np.asarray(matrix).T * c.output_multiplier
    cap = c.final_logit_softcapping
    return logits if cap is None else np.tanh(logits / cap) * cap


def out_by_hand(head: DFlash) -> np.ndarray:
    """Outputs of the slots of one block that draft."""
    c, p, length = head.config, jax.tree.map(np.asarray, head.params), len(TEXT) - 1
    layers, eps = c.layers, c.layers.rms_norm_eps
    size, groups = layers.head_dim, layers.num_attention_heads // layers.num_key_value_heads
    taps = TARGET.causal(jnp.asarray(TEXT[None, :-1], jnp.int32), c.taps).taps
    context = rms(
        np.concatenate([tap[0] for tap in taps], axis=-1) @ p["fc"]["weight"].T, p["hidden_norm"]["scale"], eps
    )
    table = p["embed_tokens"]["embedding"] if c.own_embedding else np.asarray(TARGET.table)
    x = table[[TEXT[-1]] + [c.mask_token_id] * (c.block_size - 1)]
    if c.own_mask_embedding:
        x = np.concatenate([x[:1], np.tile(p["mask_embedding"], (c.block_size - 1, 1))])
    x = x * c.input_embedding_scale
    positions = np.arange(length + c.block_size)
    for i in range(layers.num_hidden_layers):
        own = p[f"layers_{i}"]
        part = lambda name, rows, own=own["self_attn"]: rows @ own[name]["weight"].T + own[name].get("bias", 0)  # noqa: E731
        side = lambda name, *rows, own=own: (  # noqa: E731
            rows[1] if c.convolution is None else convolved(own[name], *rows, c.convolution.group_size)
        )
        read = rms(x, own["input_layernorm"]["scale"], eps)
        normed = side("attention_conv", 0, read, read)
        rows = np.concatenate([context, normed])
        q = part("q_proj", normed).reshape(len(normed), -1, size)
        k, v = (part(f"{name}_proj", rows).reshape(len(rows), -1, size) for name in "kv")
        if layers.qk_norm:
            q, k = (rms(z, own["self_attn"][f"{n}_norm"]["scale"], eps) for z, n in ((q, "q"), (k, "k")))
        q, k = rotated(q, positions[length:], layers.rope), rotated(k, positions, layers.rope)
        k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
        distance = positions[length:, None] - positions[None]
        seen = np.ones(distance.shape, bool)
        if i in c.causal_layers:
            seen &= distance >= 0
        if layers.window(i) is not None:
            seen &= np.abs(distance) < layers.window(i)
        scale = layers.rope.attention_factor**2 * size**-0.5
        scores = np.where(seen[None], np.einsum("nhc,mhc->hnm", q, k) * scale, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        made = part("o_proj", np.einsum("hnm,mhc->nhc", weights, v).reshape(len(x), -1))
        x = x + side("attention_conv", 1, made, read)
        read = rms(x, own["post_attention_layernorm"]["scale"], eps)
        normed = side("mlp_conv", 0, read, read)
        gate, up = (normed @ own["mlp"][f"{name}_proj"]["weight"].T for name in ("gate", "up"))
        made = (gate / (1 + np.exp(-gate)) * up) @ own["mlp"]["down_proj"]["weight"].T
        x = x + side("mlp_conv", 1, made, read)
    out = rms(x, p["norm"]["scale"], eps)
    return out if c.sample_from_anchor else out[1:]


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_one_block_by_hand(mode: str):
    head = head_with(**MODES[mode])
    got, expected = drafted(head), by_hand(head)
    assert got.shape == (head.num_drafted, head.draft_vocab_size) and np.ptp(expected, axis=0).max() > 0.01
    np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.matrix
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("bidirectional", "draft vocabulary")])
def test_every_option_changes_the_draft(mode: str):
    plain, changed = drafted(head_with()), drafted(head_with(**MODES[mode]))
    assert np.abs(plain - changed[: len(plain)]).max() > 1e-3 * np.abs(plain).max()


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_a_tree_that_is_less_deep_reads_the_same_slots(mode: str):
    head = head_with(**MODES[mode])
    np.testing.assert_allclose(drafted(head, depth=2), drafted(head)[:2], atol=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "yarn"])
def test_blocks_over_a_text_are_those_of_decoding(mode: str):
    """Many anchors in one pass: each sees what lies before it, and nothing of the other blocks."""
    head, tokens = head_with(**MODES[mode]), jnp.asarray(TEXT[None], jnp.int32)
    taps = TARGET.causal(tokens, head.taps).taps
    anchors = jnp.array([[9, 0, 13, 2]], jnp.int32)
    together = head.over_text(TARGET, tokens, taps, anchors, head.num_drafted).logits[0]
    for anchor, got in zip(anchors[0].tolist(), together, strict=True):
        cache, length = head.empty_cache(1, 14), jnp.full(1, anchor, jnp.int32)
        kv = head.context(taps, jnp.arange(14, dtype=jnp.int32)[None], cache)
        cache = cache.write(kv, jnp.zeros(1, jnp.int32), length)
        expected = head.draft(TARGET, tokens[:, anchor], length, cache, head.num_drafted).logits[0]
        np.testing.assert_allclose(got, expected, atol=1e-5 * float(jnp.abs(expected).max()))


def test_what_the_block_sees_of_the_text():
    """The context and its order matter; what lies in the cache behind it does not."""
    head = head_with()
    taps = TARGET.causal(jnp.asarray(TEXT[None, :-1], jnp.int32), head.taps).taps
    length, root = len(TEXT) - 1, jnp.asarray(TEXT[-1:], jnp.int32)
    positions = jnp.arange(length, dtype=jnp.int32)[None]
    cache = head.empty_cache(1, 20)
    kv = head.context(taps, positions, cache)
    zero, whole = jnp.zeros(1, jnp.int32), jnp.full(1, length, jnp.int32)
    full = cache.write(kv, zero, whole)
    layers = tuple(KVState(layer.k, layer.v.at[:, :, length:].set(9.0)) for layer in full.kv)
    dirty = dataclasses.replace(full, layers=layers)
    expected = head.draft(TARGET, root, whole, full, 4).logits
    np.testing.assert_array_equal(head.draft(TARGET, root, whole, dirty, 4).logits, expected)
    swapped = cache.write(head.context(tuple(tap[:, ::-1] for tap in taps), positions, cache), zero, whole)
    assert np.abs(head.draft(TARGET, root, whole, swapped, 4).logits - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 1}, "block_size=1; expected at least 2"),
        ({"block_size": 0, "sample_from_anchor": True}, "block_size=0; expected at least 1"),
        ({"mask_token_id": 61}, "mask_token_id=61"),
        ({"taps": ()}, "taps"),
        ({"num_target_layers": 1}, "of a target of 1 layers"),
        ({"causal_layers": (3,)}, "causal_layers"),
        ({"causal_layers": (1, 0)}, "causal_layers"),
        ({"output_multiplier": 0.0}, "output_multiplier"),
        ({"target_hidden_size": 16}, "its own of both"),
        ({"draft_vocab_size": 62}, "draft_vocab_size=62"),
    ],
)
def test_configs_that_cannot_be(changes: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(PLAIN, **changes)


def test_a_draft_vocabulary_needs_its_ids():
    head = head_with(draft_vocab_size=20)
    with pytest.raises(ValueError, match="came with 61 target ids"):
        dataclasses.replace(head, vocabulary=None)
