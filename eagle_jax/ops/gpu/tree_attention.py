"""Tree attention for NVIDIA GPUs: the cache is split along its positions, so that a few rows keep a whole GPU busy.

Each program streams a span of one kv head's positions, from the first block in a row's sliding window up to the
request's length; the first program also takes the fresh rows, masked by ancestors. The partial results are merged by
log-sum-exp (flash-decoding, Dao et al. 2023). Spans depend on the size of the cache alone, not on the other rows of a
batch or the number of nodes.

It needs Pallas's Triton lowering: Ampere to Hopper, and JAX versions that have it. The tests compile it for an H200 and
run it in Pallas's interpreter. The first load on a GPU measures it and uses it if it is correct and faster
(`ops.choice`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from eagle_jax.ops.attention_call import (
    MASKED_SCORE,
    AttentionCall,
    SoftmaxState,
    add_keys,
    empty_state,
    merged,
    scores,
)

MAX_ROWS, BLOCK = 64, 64  # rows of a program, and positions that it reads at a time
MIN_SPAN, MAX_SPANS = 512, 16  # positions of a program, and programs along the positions


def attend(call: AttentionCall, interpret: bool = False) -> Float[Array, "b k r c"]:
    """Computes the attention of each row.

    Args:
        interpret: run in Pallas's interpreter.

    Raises:
        NotImplementedError: there is no prefix, there are more fresh rows than mask columns, or this JAX has no Triton
            lowering.
    """
    if not call.slots:
        raise NotImplementedError("there is no committed prefix to stream")
    if call.fresh[0].shape[2] > call.num_visible:
        raise NotImplementedError("there are fresh rows beyond the columns of the mask")
    try:
        from jax.experimental.pallas import triton
    except ImportError as error:
        raise NotImplementedError(f"JAX {jax.__version__} has no Triton lowering") from error
    batch, heads, rows, size = call.q.shape
    tile = min(MAX_ROWS, max(16, pl.next_power_of_2(rows)))
    span = _round_up(max(MIN_SPAN, -(-call.slots // MAX_SPANS)), BLOCK)
    spans = -(-call.slots // span)
    cache_rows = jnp.arange(batch, dtype=jnp.int32) if call.cache_rows is None else call.cache_rows.astype(jnp.int32)
    arrays = [call.q, *call.fresh, call.visible.astype(jnp.int32), call.length.astype(jnp.int32), cache_rows]
    if call.first is not None:
        arrays.append(call.first.astype(jnp.int32))
    cached = [part.reshape(-1, *part.shape[2:]) for part in call.prefix]
    parts = [jax.ShapeDtypeStruct((spans, batch, heads, rows, *width), jnp.float32) for width in ((), (), (size,))]

    def of_head(array: Any) -> pl.BlockSpec:
        """Returns the spec of the array of one request and kv head, or of one request if heads share it."""
        by_head = array.ndim == 4
        shape = (None, None, *array.shape[2:]) if by_head else (None, *array.shape[1:])
        rest = (0,) * (array.ndim - (2 if by_head else 1))
        return pl.BlockSpec(shape, lambda i, t, p: (i // heads, *((i % heads,) if by_head else ()), *rest))

    def of_span(part: Any) -> pl.BlockSpec:
        rest = (0,) * (part.ndim - 3)
        return pl.BlockSpec((None, None, None, *part.shape[3:]), lambda i, t, p: (p, i // heads, i % heads, *rest))

    max_score, weight_sum, weighted_values = pl.pallas_call(
        functools.partial(_kernel, heads=heads, nodes=call.nodes, tile=tile, span=span, softcap=call.softcap),
        grid=(batch * heads, -(-rows // tile), spans),
        in_specs=[*map(of_head, arrays), *[pl.BlockSpec()] * 2],  # the kernel looks up the row of the cache
        out_specs=[of_span(part) for part in parts],
        out_shape=parts,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="tree_attention",
    )(*arrays, *cached)
    return merged(max_score, weight_sum, weighted_values).astype(call.q.dtype)


def _kernel(*refs: Any, heads: int, nodes: int, tile: int, span: int, softcap: float | None) -> None:
    from jax.experimental.pallas.triton import load, store

    q, fresh_k, fresh_v, visible, length, cache_row, *rest = refs
    first = rest.pop(0) if len(rest) > 5 else None
    k, v, *rest = rest
    cached = cache_row[...] * heads + pl.program_id(0) % heads
    rows, size, fresh = q.shape[0], q.shape[1], fresh_k.shape[0]
    row = pl.program_id(1) * tile + jnp.arange(tile, dtype=jnp.int32)
    column = jnp.arange(pl.next_power_of_2(size), dtype=jnp.int32)
    node = row % nodes

    def block_of(ref: Any, at: Array, count: Array | int) -> Array:
        """Returns rows `at` of `ref[.., c]` (in the cache: of this head), zeros from row `count` and column c on."""
        inside = (at < count)[:, None] & (column < size)[None]
        head = (cached,) if ref.ndim == 3 else ()
        return load(ref.at[(*head, at[:, None], column[None])], mask=inside, other=0.0)

    queries = block_of(q, row, rows)

    def read_fresh(index: Any, sums: SoftmaxState) -> SoftmaxState:
        at = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        inside = (row < rows)[:, None] & (at < fresh)[None]
        mask = load(visible.at[node[:, None], at[None]], mask=inside, other=0)
        masked_scores = jnp.where(mask != 0, scores(queries, block_of(fresh_k, at, fresh), softcap), MASKED_SCORE)
        return add_keys(sums, masked_scores, block_of(fresh_v, at, fresh))

    num_committed = length[...]
    low = pl.program_id(2) * span
    until = jnp.minimum(low + span, num_committed)
    # Padding rows attend to nothing; otherwise they would make the other rows start earlier.
    since = None if first is None else load(first.at[node], mask=row < rows, other=num_committed)
    begin = low if since is None else jnp.maximum(low, jnp.min(since))

    def read_prefix(index: Any, sums: SoftmaxState) -> SoftmaxState:
        slot = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        committed = jnp.broadcast_to((slot < num_committed)[None], (tile, BLOCK))
        if since is not None:
            committed = committed & (slot[None] >= since[:, None])
        masked_scores = jnp.where(committed, scores(queries, block_of(k, slot, num_committed), softcap), MASKED_SCORE)
        return add_keys(sums, masked_scores, block_of(v, slot, num_committed))

    sums = empty_state(queries.shape)
    # only the first program reads fresh rows; a `jnp.where` of literals would lower to a 1-bit integer
    num_fresh_blocks = -(-fresh // BLOCK) * jnp.maximum(1 - pl.program_id(2), 0)
    sums = jax.lax.fori_loop(0, num_fresh_blocks, read_fresh, sums)
    sums = jax.lax.fori_loop(begin // BLOCK, (until + BLOCK - 1) // BLOCK, read_prefix, sums)

    max_score, weight_sum, weighted_values = sums
    for ref, value in zip(rest[:2], (max_score, weight_sum), strict=True):
        store(ref.at[row], value[:, 0], mask=row < rows)
    inside = (row < rows)[:, None] & (column < size)[None]
    store(rest[2].at[row[:, None], column[None]], weighted_values, mask=inside)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
