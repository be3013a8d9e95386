"""Sparse experts in place of an MLP (Mixtral, Qwen3-MoE): a router sends each token through a few of many.

No expert multiplies a row that was not sent to it. What the products look like depends on shapes and platform alone:

    grouped      pairs of a row and an expert, sorted by expert, in one grouped product: many rows on accelerators
    gathered     each pair gathers its expert's weights: few rows on GPUs
    in_blocks    sorted pairs in blocks of one expert each, block after block, weights read where they lie: few rows on
                 TPUs, where gathering moves 529 MB for a row of two 12.6 MB experts and this moves 25 (counted by the
                 v5e compiler), and any on CPU, where XLA would multiply every row with every expert instead of grouping

Letters: r rows, t experts per row, p pairs (r times t), e experts, i and o a product's inner and outer size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.config import Experts
from eagle_jax.models.layers import Linear
from eagle_jax.models.precision import precision
from eagle_jax.models.products import factors, matmul
from eagle_jax.models.quant import QuantArray
from eagle_jax.sharding import MODEL, added_up, by_row

LARGEST_BLOCK = 64

_BY_EXPERT = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


class Stacks(NamedTuple):
    """The weights of all experts, `[out, in]` each as on disk."""

    gate: Float[Array, "e m h"] | QuantArray
    up: Float[Array, "e m h"] | QuantArray
    down: Float[Array, "e h m"] | QuantArray


# Every device has a slice of every expert's width: however tokens choose, loads are even.
_SPECS: tuple[Any, ...] = (P(None, MODEL), P(None, MODEL), P(None, None, MODEL))
_WIDTH = Stacks(*_SPECS)


class SparseMLP(nn.Module):
    """`sum_e share_e * down_e(silu(gate_e(x)) * up_e(x))` over the experts that the router chose for each token."""

    hidden_size: int
    config: Experts
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.gate = Linear(self.config.num_experts, dtype=self.dtype, result=jnp.float32)
        self.experts = _ExpertStacks(self.hidden_size, self.config, self.dtype)

    def __call__(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        chosen, share = route(self.gate(x).reshape(-1, self.config.num_experts), self.config)
        by_token = tuple(part.reshape(*x.shape[:2], -1) for part in (chosen, share))
        return added_up(mix, (x, *by_token), self.experts(), _WIDTH).astype(x.dtype)


class _ExpertStacks(nn.Module):
    hidden_size: int
    config: Experts
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> Stacks:
        experts, wide = self.config.num_experts, self.config.moe_intermediate_size
        into, out = (experts, wide, self.hidden_size), (experts, self.hidden_size, wide)
        normal = nn.initializers.normal(0.02)
        return Stacks(
            gate=self.param("gate", normal, into, self.dtype),
            up=self.param("up", normal, into, self.dtype),
            down=self.param("down", normal, out, self.dtype),
        )


def mix(
    tokens: tuple[Float[Array, "b n h"], Int[Array, "b n t"], Float[Array, "b n t"]], stacks: Stacks
) -> Float[Array, "b n h"]:
    """What its experts make of each token, by their shares, in float32."""
    x, chosen, share = tokens
    pairs = apply_experts(x.reshape(-1, x.shape[-1]), chosen.reshape(-1), stacks)
    return jnp.sum(pairs.reshape(*chosen.shape, -1) * share[..., None], axis=2)


def route(logits: Float[Array, "r e"], config: Experts) -> tuple[Int[Array, "r t"], Float[Array, "r t"]]:
    """The experts of each row, the most probable first, and their shares in its result."""
    best = by_row(lambda rows: jax.lax.top_k(rows, config.num_experts_per_tok))
    share, chosen = best(jax.nn.softmax(logits, axis=-1))
    if config.norm_topk_prob:  # the same as a softmax over the chosen logits alone
        share = share / jnp.sum(share, axis=-1, keepdims=True)
    return chosen, share


def apply_experts(rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks) -> Float[Array, "p h"]:
    """What each expert makes of its row, in float32. The pairs of a row lie together."""
    platform, few = jax.default_backend(), expert.shape[0] <= stacks.gate.shape[0]
    if platform == "cpu" or (platform == "tpu" and few):
        return in_blocks(rows, expert, stacks)
    return gathered(rows, expert, stacks) if few else grouped(rows, expert, stacks)


def gathered(rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks) -> Float[Array, "p h"]:
    """Copies an expert for each of its pairs: no more than all experts weigh, while pairs are as few as they."""

    def product(x: Float[Array, "p i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "p o"]:
        weights, scales = factors(jax.tree.map(lambda part: jnp.take(part, expert, axis=0), stack), -1)
        exact = precision(stack.dtype)
        made = jnp.einsum(
            "pi,poi->po", x.astype(stack.dtype), weights, precision=exact, preferred_element_type=jnp.float32
        )
        return made if scales is None else made * scales

    return _mlp(rows[_row_of(rows, expert)], stacks, product)


def grouped(rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks) -> Float[Array, "p h"]:
    """Reads each expert once, for all of its rows. The stacks are multiplied as they lie, `[out, in]`."""
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=stacks.gate.shape[0])

    def product(x: Float[Array, "p i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "p o"]:
        weights, scales = factors(stack, -1)
        made = jax.lax.ragged_dot_general(
            x.astype(stack.dtype),
            weights,
            counts,
            _BY_EXPERT,
            precision=precision(stack.dtype),
            preferred_element_type=jnp.float32,
        )
        return made if scales is None else made * scales[expert[order]]

    made = _mlp(rows[_row_of(rows, expert)[order]], stacks, product)
    return jnp.zeros_like(made).at[order].set(made)


def in_blocks(rows: Float[Array, "r h"], expert: Int[Array, "p"], stacks: Stacks) -> Float[Array, "p h"]:
    """Reads an expert once for each block of its rows; experts without rows are never read.

    Five pairs of experts 2, 0, 2, 2, 0 in blocks of two:

        sorted   0 0 2 2 2
        blocks   0 0 | 2 2 | 2 .
    """
    pairs, experts = expert.shape[0], stacks.gate.shape[0]
    size = min(LARGEST_BLOCK, 1 << (-(-pairs // experts) - 1).bit_length())
    most = min(pairs, pairs // size + experts)

    order = jnp.argsort(expert)
    of_sorted = expert[order]
    counts = jnp.bincount(expert, length=experts)
    ends = jnp.cumsum(-(-counts // size))  # where each expert's blocks end
    starts = ends + counts // -size
    rank = jnp.arange(pairs, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[of_sorted]
    place = starts[of_sorted] * size + rank
    sorted_rows = rows[_row_of(rows, expert)[order]].astype(jnp.float32)
    laid = jnp.zeros((most * size, rows.shape[1]), jnp.float32).at[place].set(sorted_rows)
    # Found before the loop: the search is a loop too, and inside this one, inside the decoding loop, XLA:CPU with
    # `xla_cpu_copy_insertion_use_region_analysis` computes something else (jaxlib 0.10.2).
    of_block = jnp.searchsorted(ends, jnp.arange(most), side="right", method="compare_all")

    def one_block(block: Int[Array, ""], laid: Float[Array, "q h"]) -> Float[Array, "q h"]:
        def product(x: Float[Array, "s i"], stack: Float[Array, "e o i"] | QuantArray) -> Float[Array, "s o"]:
            one = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, of_block[block], keepdims=False), stack)
            return matmul(x, one)

        x = jax.lax.dynamic_slice_in_dim(laid, block * size, size)
        return jax.lax.dynamic_update_slice_in_dim(laid, _mlp(x, stacks, product), block * size, axis=0)

    made = jax.lax.fori_loop(0, ends[-1], one_block, laid)[place]
    return jnp.zeros_like(made).at[order].set(made)


def _mlp(
    x: Float[Array, "q h"], stacks: Stacks, product: Callable[[Array, Any], Float[Array, "q o"]]
) -> Float[Array, "q h"]:
    gate, up = product(x, stacks.gate).astype(x.dtype), product(x, stacks.up).astype(x.dtype)
    return product(nn.silu(gate) * up, stacks.down)


def _row_of(rows: Float[Array, "r h"], expert: Int[Array, "p"]) -> Int[Array, "p"]:
    return jnp.arange(expert.shape[0], dtype=jnp.int32) // (expert.shape[0] // rows.shape[0])
