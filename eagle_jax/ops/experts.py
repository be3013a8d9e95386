"""Mixture of experts: products of rows with the experts that they are routed to.

The implementation depends on shapes and platform alone:

    grouped      pairs of a row and an expert, sorted by expert, in one grouped product: many rows on accelerators
    gathered     each pair gathers its expert's weights: few rows on GPUs
    in_blocks    sorted pairs in blocks of one expert each, block after block, weights read where they lie: few rows on
                 TPUs, where gathering moves 529 MB for a row of two 12.6 MB experts and this moves 25 (counted by the
                 v5e compiler), and any on CPU, where XLA would multiply every row with every expert instead of grouping

Letters: r rows, t experts per row, p pairs (r times t), e experts, i and o a product's inner and outer size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.linear import factors, matmul
from eagle_jax.ops.precision import precision
from eagle_jax.ops.quantized import QuantArray

LARGEST_BLOCK = 64

_BY_EXPERT = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


class Stacks(NamedTuple):
    """The weights of all experts, `[out, in]` each as on disk."""

    gate: Float[Array, "e m h"] | QuantArray
    up: Float[Array, "e m h"] | QuantArray
    down: Float[Array, "e h m"] | QuantArray
    gate_bias: Float[Array, "e m"] | None = None
    up_bias: Float[Array, "e m"] | None = None


class Activation(NamedTuple):
    """`silu(gate) * up`, or GELU in silu's place, by tanh (Gemma 4); with a limit
    `gate * sigmoid(alpha * gate) * (up + 1)`, of gates cut at the limit and ups at both signs of it (gpt-oss).
    """

    limit: float | None = None
    alpha: float = 1.702
    gelu: bool = False

    def __call__(self, gate: Float[Array, "q m"], up: Float[Array, "q m"]) -> Float[Array, "q m"]:
        if self.limit is None:
            return (jax.nn.gelu(gate, approximate=True) if self.gelu else jax.nn.silu(gate)) * up
        gate, up = jnp.minimum(gate, self.limit), jnp.clip(up, -self.limit, self.limit)
        return gate * jax.nn.sigmoid(gate * self.alpha) * (up + 1)


SILU = Activation()


def apply_experts(
    rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks, activation: Activation = SILU
) -> Float[Array, "p h"]:
    """Computes the output of each pair of a row and an expert, in float32. The pairs of a row are contiguous."""
    platform, few = jax.default_backend(), expert.shape[0] <= stacks.gate.shape[0]
    if platform == "cpu" or (platform == "tpu" and few):
        return in_blocks(rows, expert, stacks, activation)
    return (gathered if few else grouped)(rows, expert, stacks, activation)


def gathered(
    rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks, activation: Activation = SILU
) -> Float[Array, "p h"]:
    """Copies an expert for each of its pairs; with few pairs that is no more than the size of all experts."""

    def product(x: Float[Array, "p i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "p o"]:
        weights, scales = factors(jax.tree.map(lambda part: jnp.take(part, expert, axis=0), stack), -1)
        exact, x = precision(stack.dtype), _in_order(x, stack, expert).astype(stack.dtype)
        products = jnp.einsum("pi,poi->po", x, weights, precision=exact, preferred_element_type=jnp.float32)
        return products if scales is None else products * scales

    return _mlp(rows[_row_of(rows, expert)], stacks, product, activation, expert)


def grouped(
    rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks, activation: Activation = SILU
) -> Float[Array, "p h"]:
    """Reads each expert once, for all of its rows. The stacks are multiplied as they lie, `[out, in]`."""
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=stacks.gate.shape[0])

    def product(x: Float[Array, "p i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "p o"]:
        weights, scales = factors(stack, -1)
        products = jax.lax.ragged_dot_general(
            _in_order(x, stack, expert[order]).astype(stack.dtype),
            weights,
            counts,
            _BY_EXPERT,
            precision=precision(stack.dtype),
            preferred_element_type=jnp.float32,
        )
        return products if scales is None else products * scales[expert[order]]

    products = _mlp(rows[_row_of(rows, expert)[order]], stacks, product, activation, expert[order])
    return jnp.zeros_like(products).at[order].set(products)


def in_blocks(
    rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks, activation: Activation = SILU
) -> Float[Array, "p h"]:
    """Reads an expert once for each block of its rows; experts without rows are never read.

    Five pairs of experts 2, 0, 2, 2, 0 in blocks of two:

        sorted   0 0 2 2 2
        blocks   0 0 | 2 2 | 2 .
    """
    pairs, experts = expert.shape[0], stacks.gate.shape[0]
    size = min(LARGEST_BLOCK, 1 << (-(-pairs // experts) - 1).bit_length())
    max_blocks = min(pairs, pairs // size + experts)

    order = jnp.argsort(expert)
    of_sorted = expert[order]
    counts = jnp.bincount(expert, length=experts)
    ends = jnp.cumsum(-(-counts // size))  # where each expert's blocks end
    starts = ends + counts // -size
    rank = jnp.arange(pairs, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[of_sorted]
    place = starts[of_sorted] * size + rank
    sorted_rows = rows[_row_of(rows, expert)[order]].astype(jnp.float32)
    laid = jnp.zeros((max_blocks * size, rows.shape[1]), jnp.float32).at[place].set(sorted_rows)
    # Found before the loop: the search is a loop too, and inside this one, inside the decoding loop, XLA:CPU with
    # `xla_cpu_copy_insertion_use_region_analysis` computes something else (jaxlib 0.10.2).
    of_block = jnp.searchsorted(ends, jnp.arange(max_blocks), side="right", method="compare_all")

    def one_block(block: Int[Array, ""], laid: Float[Array, "q h"]) -> Float[Array, "q h"]:
        def product(x: Float[Array, "s i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "s o"]:
            matrix = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, of_block[block], keepdims=False), stack)
            return matmul(x, matrix)

        x = jax.lax.dynamic_slice_in_dim(laid, block * size, size)
        out = _mlp(x, stacks, product, activation, of_block[block][None])
        return jax.lax.dynamic_update_slice_in_dim(laid, out, block * size, axis=0)

    products = jax.lax.fori_loop(0, ends[-1], one_block, laid)[place]
    return jnp.zeros_like(products).at[order].set(products)


def _mlp(
    x: Float[Array, "q h"],
    stacks: Stacks,
    product: Callable[[Array, Any], Float[Array, "q o"]],
    activation: Activation,
    expert: Int[Array, "_"],
) -> Float[Array, "q h"]:
    """Computes an expert's MLP for each row; `expert` is one per row, or one for all rows."""
    gate, up = product(x, stacks.gate).astype(x.dtype), product(x, stacks.up).astype(x.dtype)
    if stacks.gate_bias is not None and stacks.up_bias is not None:
        gate, up = gate + stacks.gate_bias[expert].astype(x.dtype), up + stacks.up_bias[expert].astype(x.dtype)
    return product(activation(gate, up), stacks.down)


def _in_order(
    x: Float[Array, "p i"], stack: Float[Array, "e o i"] | QuantArray, expert: Int[Array, "p"]
) -> Float[Array, "p i"]:
    """Puts the inputs of each row in the order of its expert's codes."""
    if not isinstance(stack, QuantArray) or stack.order is None:
        return x
    return jnp.take_along_axis(x, stack.order[expert], axis=1)


def _row_of(rows: Float[Array, "r h"], expert: Int[Array, "p"]) -> Int[Array, "p"]:
    return jnp.arange(expert.shape[0], dtype=jnp.int32) // (expert.shape[0] // rows.shape[0])
