"""Rotary position embedding and the ways HuggingFace stretches it."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.configs.facts import FamilyFacts
from eagle_jax.configs.target import Rope
from eagle_jax.ops import CosSin, computed_once


def cos_sin(rope: Rope | None, head_dim: int, positions: Int[Array, "b n"], rope_length: Int[Array, "b"]) -> CosSin:
    """Computes cosines and sines for tokens at `positions`, in float32; None rotates by nothing, which changes no bit.

    bfloat16 would round position 257 to 256, and sin(257) is not sin(256).

    `rope_length` matters to dynamic NTK scaling and LongRoPE only. There frequencies depend on the length seen when a
    key is made: the prompt's for all prompt tokens, then each token's own position. That is what transformers does
    token by token, and it makes a key a function of (prompt, position) alone, so drafting cannot change it.
    """
    if rope is None:
        shape = (*positions.shape, head_dim // 2)
        return jnp.ones(shape, jnp.float32), jnp.zeros(shape, jnp.float32)
    size, context = rope.rotated(head_dim), jnp.maximum(positions + 1, rope_length[:, None])
    if rope.kind == "dynamic":
        turns = _dynamic_frequencies(rope, size, context)
    elif rope.kind == "longrope":
        assert rope.original_max_position_embeddings is not None
        short, long = (
            jnp.asarray(_default(rope, size) / np.asarray(factors), jnp.float32)[None, None]
            for factors in (rope.short_factor, rope.long_factor)
        )
        turns = jnp.where((context > rope.original_max_position_embeddings)[..., None], long, short)
    else:
        turns = jnp.asarray(frequencies(rope, head_dim), jnp.float32)[None, None]
    angle = positions.astype(jnp.float32)[..., None] * turns
    factor = rope.attention_factor
    return computed_once(lambda: (jnp.cos(angle) * factor, jnp.sin(angle) * factor), positions)


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Returns the radians by which each rotated pair turns from one position to the next, mostly `[head_dim / 2]`.

    Args:
        rope: of any kind but `dynamic` and `longrope`, whose frequencies depend on the length seen.
    """
    return _FREQUENCIES[rope.kind](rope, rope.rotated(head_dim))


def query_scale(config: FamilyFacts, rope: Rope | None, positions: Int[Array, "b n"]) -> Float[Array, "b n"] | None:
    """Returns the factor of queries in a layer with this rotation, which grows beyond the original context or, where
    nothing is rotated, beyond the first `no_rope_query_step` positions (Llama 4); None is 1.
    """
    beta = config.no_rope_query_beta if rope is None else rope.query_beta
    if not beta:
        return None
    if rope is None:
        times = (jnp.maximum(positions, 0) + 1) // config.no_rope_query_step
    else:
        assert rope.original_max_position_embeddings is not None
        times = jnp.maximum(positions, 0) // rope.original_max_position_embeddings
    return 1 + beta * jnp.log1p(times.astype(jnp.float32))


def _exponents(head_dim: int) -> np.ndarray:
    return np.arange(0, head_dim, 2, dtype=np.float64) / head_dim


def _default(rope: Rope, head_dim: int) -> np.ndarray:
    return rope.theta ** -_exponents(head_dim)


def _linear(rope: Rope, head_dim: int) -> np.ndarray:
    return _default(rope, head_dim) / rope.factor


def _proportional(rope: Rope, head_dim: int) -> np.ndarray:
    """Returns the first frequencies of a whole head, zero for the other pairs (Gemma 4)."""
    frequencies = _linear(rope, head_dim)
    frequencies[int(rope.partial_rotary_factor * head_dim // 2) :] = 0
    return frequencies


def _ntk(rope: Rope, head_dim: int) -> np.ndarray:
    """Scales by a constant (NTK-aware): the slowest pair is slowed by about `factor`."""
    return (rope.theta * rope.factor ** (head_dim / (head_dim - 2))) ** -_exponents(head_dim)


def _llama3(rope: Rope, head_dim: int) -> np.ndarray:
    """Slows long wavelengths by `factor`, keeps short ones, and interpolates between them (Llama 3.1)."""
    frequencies = _default(rope, head_dim)
    wavelengths = 2 * math.pi / frequencies
    assert rope.low_freq_factor is not None and rope.high_freq_factor is not None
    assert rope.original_max_position_embeddings is not None
    rotations = rope.original_max_position_embeddings / wavelengths
    smooth = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1 - smooth) * frequencies / rope.factor + smooth * frequencies


def _yarn(rope: Rope, head_dim: int) -> np.ndarray:
    """Slows all pairs but those that rotate often (YaRN, Peng et al. 2023, section 3.2)."""
    original = rope.original_max_position_embeddings
    assert original is not None

    def dimension_rotating(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_rotating(rope.beta_fast), dimension_rotating(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / (high - low if high != low else 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    frequencies = _default(rope, head_dim)
    return frequencies / rope.factor * (1 - keep) + frequencies * keep


def _dynamic_frequencies(rope: Rope, head_dim: int, context: Int[Array, "b n"]) -> Float[Array, "b n half"]:
    """Computes dynamic NTK: theta grows with the length, so the slowest pair stretches by about `seen / original`."""
    original = rope.original_max_position_embeddings
    assert original is not None
    stretch = rope.factor * jnp.maximum(context, original).astype(jnp.float32) / original - (rope.factor - 1)
    theta = rope.theta * stretch ** (head_dim / (head_dim - 2))
    return theta[..., None] ** -jnp.asarray(_exponents(head_dim), jnp.float32)[None, None]


_FREQUENCIES = {"default": _default, "linear": _linear, "ntk": _ntk, "llama3": _llama3, "yarn": _yarn}
_FREQUENCIES |= {"proportional": _proportional}
