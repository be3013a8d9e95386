"""Attention of a tree of fresh tokens to the committed prefix and to their ancestors."""

import functools
import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops import attention_reference
from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.dispatch import dispatch
from eagle_jax.ops.types import KV, CachedKV


def tree_attention(
    q: Float[Array, "b h n c"],
    fresh: KV,
    visible: Bool[Array, "b n m"],
    prefix: CachedKV,
    length: Int[Array, "b"],
    first: Int[Array, "b n"] | None = None,
    cache_rows: Int[Array, "b"] | None = None,
    count: Int[Array, "b"] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Array, "h"] | None = None,
) -> Float[Array, "b h n c"]:
    """Attends from each of `n` fresh tokens to its request's committed positions and to the fresh rows in `visible`.

    The softmax runs over both parts together, in float32. With two accepted tokens a, b in the cache and the tree
    c(d, e(f)) in flight:

                 prefix  fresh
                 a b     c d e f
        c        1 1     1 . . .
        d        1 1     1 1 . .
        e        1 1     1 . 1 .
        f        1 1     1 . 1 1

    Heads share keys in groups of `h // k` (GQA); keys are never repeated in memory. Up to rounding, the result for a
    token depends only on the keys that it attends to, not on the tree or the batch around it.

    Args:
        q: queries, rotated.
        fresh: keys and values `[b k m c]` of the fresh tokens. Rows beyond the columns of `visible` come in groups of
            `n`, and token i attends to the i-th row of each group.
        prefix: keys and values `[u k s c]` of the cache; positions from `length` on are not read, or have weight 0.
        length: committed positions of each request.
        first: first committed position that each token attends to (sliding window); None is 0.
        cache_rows: row of the cache of each request; None: the cache has one row per request, in order.
        count: leading tokens of each request that are not padding; results of padding are arbitrary. None is all.
        scale: factor on the scores; None is `c ** -0.5`.
        softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2).
        sinks: for each head a logit that joins its softmax without a value (gpt-oss); neither scaled nor capped.
    """
    batch, _, _, size = q.shape
    check_rows(batch, prefix, cache_rows)
    scaled = q * (1 / math.sqrt(size) if scale is None else scale)
    rows = scaled.reshape(batch, fresh[0].shape[1], -1, size)
    by_row = _by_row(sinks, fresh, q.shape[2])
    call = AttentionCall(rows, fresh, visible, prefix, length, first, softcap, cache_rows, count, by_row)
    if not call.slots:  # no backend is faster without a cache
        return attention_reference.attend(call).reshape(q.shape)
    one_block = functools.partial(attention_reference.attend, block=call.slots)  # a loop over blocks has no gradient
    return dispatch("tree_attention", attention_reference.attend, call, differentiable=one_block).reshape(q.shape)


def _by_row(sinks: Float[Array, "h"] | None, fresh: KV, nodes: int) -> Float[Array, "1 k r 1"] | None:
    """Repeats the sink of each head for its rows."""
    if sinks is None:
        return None
    heads = sinks.astype(jnp.float32).reshape(fresh[0].shape[1], -1)
    return jnp.repeat(heads, nodes, axis=1)[None, :, :, None]


def check_rows(batch: int, prefix: CachedKV, cache_rows: Int[Array, "b"] | None) -> None:
    """Raises ValueError if requests need `cache_rows` to find their rows of the cache."""
    if cache_rows is None and len(prefix[0]) != batch:
        raise ValueError(
            f"a cache of {len(prefix[0])} rows for {batch} requests; pass cache_rows, the `rows` of a Cache"
        )
