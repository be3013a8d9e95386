"""Arguments of the compiled blocks of a decoder layer."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.types import KV, AttentionInputs, CachedKV


class PackedAttention(NamedTuple):
    """Weights of an attention block.

    Attributes:
        scale: scale of the norm; empty without a norm.
        qkv: packed; outputs are, for each kv head, its queries, its key, its value.
        o: packed.
    """

    scale: Float[Array, "_"]
    qkv: Float[Array, "s _ _"]
    o: Float[Array, "t _ _"]


class PackedMLP(NamedTuple):
    """Weights of an MLP block.

    Attributes:
        scale: scale of the norm.
        gate_up: packed; all outputs of the gate first.
        down: packed.
    """

    scale: Float[Array, "h"]
    gate_up: Float[Array, "s _ _"]
    down: Float[Array, "t _ _"]


class AttentionArguments(NamedTuple):
    """`AttentionInputs` with the keys and values that the block attends to.

    Attributes:
        cos_sin: rotary cosines and sines.
        draft_kv: keys and values of earlier draft levels, of none or more rows.
        visible: which rows of `draft_kv`, and then of its own keys, each node attends to.
        prefix, length, cache_rows: the cache, its committed slots, and the row of it that each request has.
        spans: of each request the first of its rows of `[b * n]`, how many it has, and where the next one's begin.
        num_valid: leading rows of `[b * n]` that are not padding.
    """

    cos_sin: tuple[Float[Array, "b n half"], Float[Array, "b n half"]]
    draft_kv: KV
    visible: Bool[Array, "b n m"]
    prefix: CachedKV
    length: Int[Array, "b"]
    cache_rows: Int[Array, "b"]
    spans: Int[Array, "b 3"]
    num_valid: Int[Array, ""]


def spans(inputs: AttentionInputs, rows: int) -> Int[Array, "b 3"]:
    """Returns `AttentionArguments.spans` of a pass whose rows of the batch have `rows` rows each."""
    if inputs.flat is not None:
        begin, count = inputs.flat.begin, inputs.flat.count
        return jnp.stack([begin, count, jnp.append(begin[1:], rows)], axis=1)
    requests = len(inputs.length)
    begin = rows * jnp.arange(requests, dtype=jnp.int32)
    count = jnp.full_like(begin, rows) if requests > 1 else jnp.clip(inputs.num_valid, 0, rows)[None]
    return jnp.stack([begin, count, begin + rows], axis=1)


def cache_rows(rows: Int[Array, "b"] | None, requests: int) -> Int[Array, "b"]:
    """Returns the rows written out: without any, request i has row i."""
    return jnp.arange(requests, dtype=jnp.int32) if rows is None else rows
