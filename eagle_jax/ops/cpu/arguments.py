"""Arguments of the compiled blocks of a decoder layer."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.types import KV, CachedKV


class PackedAttention(NamedTuple):
    """Weights of an attention block.

    Attributes:
        scale: of the norm; empty without a norm.
        qkv: packed; outputs are, for each kv head, its queries, its key, its value.
        o: packed.
    """

    scale: Float[Array, "_"]
    qkv: Float[Array, "s _ _"]
    o: Float[Array, "t _ _"]


class PackedMLP(NamedTuple):
    """Weights of an MLP block.

    Attributes:
        scale: of the norm.
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
        num_valid: leading rows of `[b * n]` that are not padding.
    """

    cos_sin: tuple[Float[Array, "b n half"], Float[Array, "b n half"]]
    draft_kv: KV
    visible: Bool[Array, "b n m"]
    prefix: CachedKV
    length: Int[Array, "b"]
    cache_rows: Int[Array, "b"]
    num_valid: Int[Array, ""]


def cache_rows(rows: Int[Array, "b"] | None, requests: int) -> Int[Array, "b"]:
    """The rows written out: without any, request i has row i."""
    return jnp.arange(requests, dtype=jnp.int32) if rows is None else rows
