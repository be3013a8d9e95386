"""Tree attention for NVIDIA GPUs: the cache is split along its slots, so that a few rows keep a whole GPU busy.

Each program streams its span of one kv head's slots, from the block where the first window of its rows begins up to the
request's own length; the first program takes the fresh rows, masked by ancestors, as well. What they make is merged by
log-sum-exp (flash-decoding, Dao et al. 2023). Spans are cut by the size of the cache alone: neither the other rows of a
batch nor the number of nodes move them.

It goes through Pallas's Triton lowering: Ampere to Hopper, and JAX versions that still have it. It is compiled for an
H200 and run in Pallas's interpreter by the tests. The first load on a GPU measures it there and takes it where it is
right and faster (`ops.choice`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from eagle_jax.ops.attention_call import UNSEEN, AttentionCall, Sums, absorb, merged, nothing, scores

ROWS, BLOCK = 64, 64  # rows of a program, and slots it reads at a time
SPAN, SPANS = 512, 16  # fewest slots of a program, and most programs along the slots


def attend(case: AttentionCall, interpret: bool = False) -> Float[Array, "b k r c"]:
    """Computes the average over all that each row sees.

    Args:
        interpret: run in Pallas's interpreter.

    Raises:
        NotImplementedError: a case without a prefix, or a JAX without the Triton lowering.
    """
    if not case.slots:
        raise NotImplementedError("there is no committed prefix to stream")
    if case.fresh[0].shape[2] > case.named:
        raise NotImplementedError("there are fresh rows that only one node each sees")
    try:
        from jax.experimental.pallas import triton
    except ImportError as error:
        raise NotImplementedError(f"JAX {jax.__version__} has no Triton lowering") from error
    batch, heads, rows, size = case.q.shape
    tile = min(ROWS, max(16, pl.next_power_of_2(rows)))
    span = _up(max(SPAN, -(-case.slots // SPANS)), BLOCK)
    spans = -(-case.slots // span)
    cache_rows = jnp.arange(batch, dtype=jnp.int32) if case.cache_rows is None else case.cache_rows.astype(jnp.int32)
    arrays = [case.q, *case.fresh, case.visible.astype(jnp.int32), case.length.astype(jnp.int32), cache_rows]
    if case.first is not None:
        arrays.append(case.first.astype(jnp.int32))
    cached = [part.reshape(-1, *part.shape[2:]) for part in case.prefix]
    parts = [jax.ShapeDtypeStruct((spans, batch, heads, rows, *width), jnp.float32) for width in ((), (), (size,))]

    def of_head(array: Any) -> pl.BlockSpec:
        """Returns the whole array of one request and kv head, or of one request where heads share it."""
        by_head = array.ndim == 4
        shape = (None, None, *array.shape[2:]) if by_head else (None, *array.shape[1:])
        rest = (0,) * (array.ndim - (2 if by_head else 1))
        return pl.BlockSpec(shape, lambda i, t, p: (i // heads, *((i % heads,) if by_head else ()), *rest))

    def of_span(part: Any) -> pl.BlockSpec:
        rest = (0,) * (part.ndim - 3)
        return pl.BlockSpec((None, None, None, *part.shape[3:]), lambda i, t, p: (p, i // heads, i % heads, *rest))

    top, total, mixed = pl.pallas_call(
        functools.partial(_kernel, heads=heads, nodes=case.nodes, tile=tile, span=span, softcap=case.softcap),
        grid=(batch * heads, -(-rows // tile), spans),
        in_specs=[*map(of_head, arrays), *[pl.BlockSpec()] * 2],  # which row of the cache it is, only the kernel knows
        out_specs=[of_span(part) for part in parts],
        out_shape=parts,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="tree_attention",
    )(*arrays, *cached)
    return merged(top, total, mixed).astype(case.q.dtype)


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
        """Returns rows `at` of `ref[.., c]`, in the cache those of this program's head; zeros out of bounds."""
        inside = (at < count)[:, None] & (column < size)[None]
        head = (cached,) if ref.ndim == 3 else ()
        return load(ref.at[(*head, at[:, None], column[None])], mask=inside, other=0.0)

    queries = block_of(q, row, rows)

    def read_fresh(index: Any, sums: Sums) -> Sums:
        at = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        inside = (row < rows)[:, None] & (at < fresh)[None]
        mask = load(visible.at[node[:, None], at[None]], mask=inside, other=0)
        masked_scores = jnp.where(mask != 0, scores(queries, block_of(fresh_k, at, fresh), softcap), UNSEEN)
        return absorb(sums, masked_scores, block_of(fresh_v, at, fresh))

    num_committed = length[...]
    low = pl.program_id(2) * span
    until = jnp.minimum(low + span, num_committed)
    # Rows of padding see nothing, lest they make the others begin earlier.
    since = None if first is None else load(first.at[node], mask=row < rows, other=num_committed)
    begin = low if since is None else jnp.maximum(low, jnp.min(since))

    def read_prefix(index: Any, sums: Sums) -> Sums:
        slot = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        committed = jnp.broadcast_to((slot < num_committed)[None], (tile, BLOCK))
        if since is not None:
            committed = committed & (slot[None] >= since[:, None])
        masked_scores = jnp.where(committed, scores(queries, block_of(k, slot, num_committed), softcap), UNSEEN)
        return absorb(sums, masked_scores, block_of(v, slot, num_committed))

    sums = nothing(queries.shape)
    of_fresh = -(-fresh // BLOCK) * jnp.maximum(1 - pl.program_id(2), 0)  # a `where` of two literals becomes 1 bit wide
    sums = jax.lax.fori_loop(0, of_fresh, read_fresh, sums)
    sums = jax.lax.fori_loop(begin // BLOCK, (until + BLOCK - 1) // BLOCK, read_prefix, sums)

    top, total, mixed = sums
    for ref, value in zip(rest[:2], (top, total), strict=True):
        store(ref.at[row], value[:, 0], mask=row < rows)
    inside = (row < rows)[:, None] & (column < size)[None]
    store(rest[2].at[row[:, None], column[None]], mixed, mask=inside)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
