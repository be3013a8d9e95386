"""The attention block of a decoder layer, `y = residual + o(attention(qkv(norm(x))))`, as one operation."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.ops.cpu.arguments import AttentionArguments, PackedAttention
from eagle_jax.ops.cpu.attention_tasks import build_phases
from eagle_jax.ops.cpu.blocks import BLOCK, MAX_WIDTH
from eagle_jax.ops.cpu.code import (
    LANES,
)
from eagle_jax.ops.cpu.packed_linear import add_float_handlers
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.types import KV

NAMES = {
    jnp.dtype(jnp.float32): "eagle_jax_attention_block_f32",
    jnp.dtype(jnp.bfloat16): "eagle_jax_attention_block_bf16",
}


def attention_block(
    residual: Float[Array, "b n h"],
    x: Float[Array, "b n i"],
    eps: float,
    weights: PackedAttention,
    arguments: AttentionArguments,
    factor: float,
) -> tuple[Float[Array, "b n h"], KV]:
    """Computes the block for rows of float32, and the keys and values of these rows; zeros for rows of padding.

    Args:
        eps: epsilon of the norm.
        factor: factor of the scores.
    """
    dtype = weights.qkv.dtype
    results = _result_types(residual.shape, x.shape, weights, arguments)
    rows = [x, residual, jnp.float32(eps), *weights]
    y, k, v, *_ = jax.ffi.ffi_call(NAMES[dtype], results)(*rows, *_trailing_arguments(arguments, factor))
    return y, (k, v)


def _trailing_arguments(arguments: AttentionArguments, factor: float) -> list[Array]:
    """Returns the arguments after the weights."""
    cos_sin, draft_kv, mask, prefix, length, rows, spans, num_valid = arguments
    # vectors of 16 are read from any byte on
    mask = jnp.pad(mask, ((0, 0), (0, 0), (0, -mask.shape[2] % BLOCK + BLOCK))).astype(jnp.int8)
    return [*cos_sin, *draft_kv, mask, *prefix, length, rows, spans, jnp.float32(factor), num_valid]


def _result_types(
    residual: tuple[int, ...], x: tuple[int, ...], weights: PackedAttention, arguments: AttentionArguments
) -> list[jax.ShapeDtypeStruct]:
    """Returns the results: outputs, keys, values, and scratch memory."""
    (batch, nodes, inputs), (_, heads, _, size), dtype = x, arguments.prefix[0].shape, weights.qkv.dtype
    rows, outputs, attended = batch * nodes, weights.qkv.size // inputs, weights.o.size // residual[2]
    num_queries = outputs // size // heads - 2
    types: list[tuple[tuple[int, ...], DTypeLike]] = [
        (residual, jnp.float32),
        *[((batch, heads, nodes, size), jnp.float32)] * 2,
        ((rows, inputs), dtype),
        ((rows, outputs), jnp.float32),
        *[((batch, heads, num_queries * nodes, size), jnp.float32)] * 2,
        ((batch, heads, num_queries * nodes, 2, LANES), jnp.float32),
        ((rows, attended), dtype),
    ]
    return [jax.ShapeDtypeStruct(shape, kind) for shape, kind in types]


def names() -> list[str]:
    """Returns the names of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    add_float_handlers(module, NAMES, _signature, build_phases)


def _signature(dtype: str, pair: int) -> Signature:
    """Returns the signature for weights with `pair` inputs in a word.

    For each of k kv heads g query rows, n of each query head; q outputs of qkv, v inputs of o; m rows of earlier draft
    levels, w rows of the cache and u slots; y requests; a is half of the head size c.
    """
    rows, draft = (f"float32[b, k, {count}, c]" for count in ("n", "m"))
    prefix = "float32[w, k, u, c]"
    return Signature(
        arguments={
            "x": "float32[b, n, i]",
            "residual": "float32[b, n, h]",
            "eps": "float32[]",
            "scale": "float32[z]",
            "qkv": f"{dtype}[s, j, l]",
            "o": f"{dtype}[t, e, d]",
            "cosines": "float32[b, n, a]",
            "sines": "float32[b, n, a]",
            "draft_keys": draft,
            "draft_values": draft,
            "visible": "int8[b, n, p]",
            "prefix_keys": prefix,
            "prefix_values": prefix,
            "length": "int32[y]",
            "cache_rows": "int32[y]",
            "spans": "int32[y, 3]",
            "factor": "float32[]",
            "num_valid": "int32[]",
        },
        results={
            "y": "float32[b, n, h]",
            "keys": rows,
            "values": rows,
            "prepared": f"{dtype}[r, i]",
            "projected": "float32[r, q]",
            "queries": "float32[b, k, g, c]",
            "attended": "float32[b, k, g, c]",
            "sums": f"float32[b, k, g, 2, {LANES}]",
            "concatenated": f"{dtype}[r, v]",
        },
        relations=[
            "b >= 1",
            "w >= 1",
            "n >= 1",
            "y == b or b == 1",
            "m == 0 or y == b",
            "r == b * n",
            "c == 2 * a",
            f"a % {LANES} == 0",
            f"c <= {MAX_WIDTH}",
            "z == 0 or z == i",
            f"i % {LANES} == 0",
            f"i == {pair} * j",
            f"l % {pair * LANES} == 0",
            f"s * l == {pair} * q",
            "g % n == 0",
            "q * n == k * c * (g + 2 * n)",
            "v * n == k * c * g",
            f"v == {pair} * e",
            f"d % {pair * LANES} == 0",
            f"t * d == {pair} * h",
            f"p >= m + n + {LANES - 1}",
        ],
    )
