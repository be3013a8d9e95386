"""Operations of the networks: a plain-JAX reference for each, and backends that compute some of them faster.

Models call operations unconditionally; `dispatch` chooses the implementation. The folders `cpu`, `tpu` and `gpu` are
backends, imported when they are chosen; without them everything still works, more slowly.

    linear            x @ weight.T + bias, with float, quantized or packed weights
    rms_norm          x / rms(x) * scale
    embed             rows of an embedding table
    tree_attention    attention of a tree of fresh tokens to the committed prefix and to its ancestors
    attention_block   residual + o(attention(qkv(norm(x))))
    mlp_block         x + down(silu(gate(norm(x))) * up(norm(x)))
    feed_forward      down(silu(gate(x)) * up(x)), by `linear`
    gated_delta       the gated delta rule over a tree of fresh tokens
    top_k, argmax     the largest values of rows over a vocabulary
"""

from eagle_jax.ops.attention_block import add_residual, attention_block, keys_and_values
from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.dispatch import VARIABLE, tracing_context
from eagle_jax.ops.embed import embed
from eagle_jax.ops.flat_attention import flat_attention
from eagle_jax.ops.gated_delta import (
    DeltaRows,
    convolved,
    earlier_rows,
    gated_delta,
    gated_delta_chain,
    memory_after,
    rows_before,
)
from eagle_jax.ops.linear import linear, matmul
from eagle_jax.ops.mlp_block import feed_forward, mlp_block
from eagle_jax.ops.packing import PackedWeight, Transposed, is_leaf, pack, pack_for_backend, unpack
from eagle_jax.ops.precision import activation_dtype, precision
from eagle_jax.ops.rms_norm import rms_norm
from eagle_jax.ops.rotary import computed_once, rotate
from eagle_jax.ops.top_k import argmax, top_k
from eagle_jax.ops.tree_attention import tree_attention
from eagle_jax.ops.types import (
    KV,
    Affine,
    AttentionInputs,
    AttentionWeights,
    CachedKV,
    CosSin,
    FlatRows,
    LayerRows,
    MLPWeights,
    Norm,
)

__all__ = [
    "KV",
    "VARIABLE",
    "Affine",
    "AttentionInputs",
    "AttentionWeights",
    "CachedKV",
    "AttentionCall",
    "CosSin",
    "DeltaRows",
    "FlatRows",
    "LayerRows",
    "MLPWeights",
    "Norm",
    "PackedWeight",
    "Transposed",
    "activation_dtype",
    "add_residual",
    "argmax",
    "attention_block",
    "computed_once",
    "convolved",
    "earlier_rows",
    "embed",
    "feed_forward",
    "flat_attention",
    "gated_delta",
    "gated_delta_chain",
    "is_leaf",
    "keys_and_values",
    "linear",
    "matmul",
    "memory_after",
    "mlp_block",
    "pack",
    "pack_for_backend",
    "precision",
    "rms_norm",
    "rotate",
    "rows_before",
    "top_k",
    "tracing_context",
    "tree_attention",
    "unpack",
]
