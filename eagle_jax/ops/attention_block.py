"""The attention half of a decoder layer."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.ops.dispatch import dispatch
from eagle_jax.ops.flat_attention import flat_attention
from eagle_jax.ops.linear import linear
from eagle_jax.ops.rms_norm import rms_norm
from eagle_jax.ops.rotary import rotate
from eagle_jax.ops.tree_attention import check_rows, tree_attention
from eagle_jax.ops.types import KV, Affine, AttentionInputs, AttentionWeights, CachedKV, LayerRows, Norm

Heads = tuple[Float[Array, "b _ n c"], ...]  # queries; keys and values unless the layer has none


def attention_block(
    residual: Float[Array, "b n h"],
    x: Float[Array, "b n i"],
    weights: AttentionWeights,
    inputs: AttentionInputs,
    prefix: CachedKV,
    draft_kv: KV | None = None,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "b n h"], LayerRows]:
    """Computes `residual + o(attention(qkv(norm(x))))`; also returns the fresh tokens' keys (rotated) and values.

    Args:
        prefix: keys and values of the cache, `[u k s c]`.
        draft_kv: keys and values of earlier draft levels, the first columns of `inputs.visible`; of all fresh tokens if
            the layer computes no keys.
        scale: factor on the scores.
        softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2).
    """
    check_rows(len(inputs.length), prefix, inputs.cache_rows)
    if draft_kv is None:
        batch, (_, heads, _, size) = len(x), prefix[0].shape
        none = jnp.zeros((batch, heads, 0, size), prefix[0].dtype)
        draft_kv = none, none
    args = residual, x, weights, inputs, prefix, draft_kv
    return dispatch("attention_block", reference, *args, scale=scale, softcap=softcap)


def reference(
    residual: Float[Array, "b n h"],
    x: Float[Array, "b n i"],
    weights: AttentionWeights,
    inputs: AttentionInputs,
    prefix: CachedKV,
    draft_kv: KV,
    *,
    scale: float,
    softcap: float | None,
) -> tuple[Float[Array, "b n h"], LayerRows]:
    """Computes the block operation by operation."""
    batch, n, _ = x.shape
    (q, *fresh_kv), gate = _project(x, weights, inputs, head_dim=prefix[0].shape[3])
    if inputs.query_scale is not None:
        q = q * inputs.query_scale[:, None, :, None].astype(q.dtype)
    fresh: KV = (fresh_kv[0], fresh_kv[1]) if fresh_kv else draft_kv
    if fresh_kv and draft_kv[0].shape[2]:
        fresh = jnp.concatenate([draft_kv[0], fresh_kv[0]], axis=2), jnp.concatenate([draft_kv[1], fresh_kv[1]], axis=2)
    keys_to_attend = inputs.visible, prefix, inputs.length, inputs.first, inputs.cache_rows
    how: dict[str, Any] = dict(scale=scale, softcap=softcap, sinks=weights.sinks)
    if inputs.flat is None:
        attended = tree_attention(q, fresh, *keys_to_attend, **how)
    else:
        attended = flat_attention(q, fresh, *keys_to_attend, inputs.flat, **how)
    if gate is not None:
        attended = attended * jax.nn.sigmoid(gate)
    y = linear(attended.swapaxes(1, 2).reshape(batch, n, -1), weights.o)
    return add_residual(residual, y, weights.post_norm, weights.multiplier), tuple(fresh_kv)


def add_residual(
    residual: Float[Array, "b n h"], y: Float[Array, "b n h"], post_norm: Norm | None, multiplier: float
) -> Array:
    """Adds `y` to the residual, after its norm, if any, and times `multiplier`."""
    y = y if post_norm is None else rms_norm(y, post_norm)
    return residual + (y if multiplier == 1 else y * multiplier)


def keys_and_values(x: Float[Array, "b n i"], weights: AttentionWeights, inputs: AttentionInputs, head_dim: int) -> KV:
    """Computes only keys (rotated) and values, for a chunk of a prompt whose output is not needed."""
    _, k, v = _project(x, weights, inputs, head_dim)[0]
    return k, v


def _project(
    x: Float[Array, "b n i"], weights: AttentionWeights, inputs: AttentionInputs, head_dim: int
) -> tuple[Heads, Float[Array, "b h n c"] | None]:
    """Computes by head the rotated queries and keys and the values that the layer has, and the logits of its gates."""
    batch, n, _ = x.shape
    normed = x if weights.norm is None else rms_norm(x, weights.norm)

    def by_head(rows: Float[Array, "b n *o"]) -> Float[Array, "b heads n c"]:
        return rows.reshape(batch, n, -1, head_dim).swapaxes(1, 2)

    if isinstance(weights.qkv, Affine):
        merged = linear(normed, weights.qkv, num_valid=inputs.num_valid)
        parts = [merged[..., :-2, :], merged[..., -2, :], merged[..., -1, :]]
    else:
        parts = [linear(normed, part, num_valid=inputs.num_valid) for part in weights.qkv]
    gate = None
    if weights.gated:
        both = parts[0].reshape(batch, n, -1, 2, head_dim)
        parts[0], gate = both[..., 0, :], by_head(both[..., 1, :])
    over = weights.norms_over

    def normed_and_rotated(rows: Float[Array, "b n *o"], norm: Norm | None) -> Float[Array, "b heads n c"]:
        if norm is not None and over == "projection":
            rows = rms_norm(rows.reshape(batch, n, -1), norm)
        heads = by_head(rows)
        if norm is not None and over == "head":
            heads = rms_norm(heads, norm)
        heads = rotate(heads, inputs.cos_sin, weights.interleaved)
        return rms_norm(heads, norm) if norm is not None and over == "rotated_head" else heads

    q = normed_and_rotated(parts[0], weights.q_norm)
    if len(parts) == 1:
        return (q,), gate
    values = by_head(parts[-1])
    values = values if weights.v_norm is None else rms_norm(values, weights.v_norm)
    return (q, normed_and_rotated(parts[1], weights.k_norm), values), gate
