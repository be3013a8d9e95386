"""Attention of a tree of fresh tokens over a committed prefix and over itself."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.products import precision


def tree_attention(
    q: Float[Array, "b h n c"],
    fresh: tuple[Float[Array, "b k m c"], Float[Array, "b k m c"]],
    visible: Bool[Array, "b n m"],
    prefix: tuple[Float[Array, "b k s c"], Float[Array, "b k s c"]],
    prefix_visible: Bool[Array, "b n s"],
    softcap: float | None = None,
) -> Float[Array, "b h n c"]:
    """Each of `n` fresh tokens sees the visible part of the prefix and the fresh rows that `visible` names.

    The softmax runs over both parts together, in float32. With two accepted tokens a, b in the cache and the tree
    c(d, e(f)) in flight:

                 prefix  fresh
                 a b     c d e f
        c        1 1     1 . . .
        d        1 1     1 1 . .
        e        1 1     1 . 1 .
        f        1 1     1 . 1 1

    Heads share keys in groups of `h // k` (GQA); keys are never repeated in memory. Under a `softcap`
    scores become `softcap * tanh(score / softcap)` (Gemma 2).
    """
    (batch, heads, n, size), kv_heads = q.shape, fresh[0].shape[1]
    grouped = (q * (1 / math.sqrt(size))).reshape(batch, kv_heads, heads // kv_heads * n, size)
    score_parts = [_scores(grouped, fresh[0], visible, softcap)]
    values = [fresh[1]]
    if prefix[0].shape[2]:
        score_parts.append(_scores(grouped, prefix[0], prefix_visible, softcap))
        values.append(prefix[1])

    top = jnp.max(jnp.stack([jnp.max(part, axis=-1) for part in score_parts]), axis=0)[..., None]
    weights = [jnp.exp(part - top) for part in score_parts]
    total = sum((jnp.sum(weight, axis=-1, keepdims=True) for weight in weights), start=jnp.float32(0))
    mixed = sum(
        jnp.einsum(
            "bkrs,bksc->bkrc",
            weight.astype(value.dtype),
            value,
            precision=precision(value.dtype),
            preferred_element_type=jnp.float32,
        )
        for weight, value in zip(weights, values, strict=True)
    )
    return (mixed / total).astype(q.dtype).reshape(batch, heads, n, size)


def _scores(
    q: Float[Array, "b k r c"], keys: Float[Array, "b k s c"], visible: Bool[Array, "b n s"], softcap: float | None
) -> Float[Array, "b k r s"]:
    scores = jnp.einsum(
        "bkrc,bksc->bkrs",
        q.astype(keys.dtype),
        keys,
        precision=precision(keys.dtype),
        preferred_element_type=jnp.float32,
    )
    scores = scores if softcap is None else jnp.tanh(scores / softcap) * softcap
    batch, n, slots = visible.shape
    by_token = scores.reshape(batch, keys.shape[1], -1, n, slots)
    masked = jnp.where(visible[:, None, None], by_token, jnp.finfo(jnp.float32).min)
    return masked.reshape(scores.shape)


def prefix_mask(
    positions: Int[Array, "b n"], length: Int[Array, "b"], slots: int, window: int | None
) -> Bool[Array, "b n s"]:
    """Committed slots that each token sees: all of its row's, or those within its sliding window."""
    slot = jnp.arange(slots)[None, None]
    seen = slot < length[:, None, None]
    if window is not None:
        seen = seen & (slot > positions[..., None] - window)
    return jnp.broadcast_to(seen, (*positions.shape, slots))


def window_mask(
    visible: Bool[Array, "b n m"], positions: Int[Array, "b n"], fresh_positions: Int[Array, "b m"], window: int | None
) -> Bool[Array, "b n m"]:
    """`visible`, cut to the sliding window."""
    if window is None:
        return visible
    return visible & (fresh_positions[:, None] > positions[..., None] - window)
