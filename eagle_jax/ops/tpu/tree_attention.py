"""Tree attention for TPUs: the cache is streamed through VMEM once, up to the length of each row.

A grid step reads one block of cache positions of a few kv heads. The number of steps follows from the lengths, which
are prefetched scalars; a row that is shorter than the longest asks again for the block that it has, which costs no
traffic. Every node attends to the whole prefix, so without windows only the end of a row is masked. The fresh rows,
masked by ancestors, come with the first block, into the same online softmax.

    grid: request, tile of rows, kv heads, block of positions      the last axis is innermost

Compiled for v5e, v5p and v6e by `benchmarks.compile_only.tpu_slice` and run in Pallas's interpreter by the tests.
The first load on a TPU measures it and uses it if it is correct and faster (`ops.choice`).
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from eagle_jax.ops.attention_call import MASKED_SCORE, AttentionCall, add_keys, empty_state, scores

LANES, SUBLANES = 128, 32  # of a register tile of bytes, the dtype of masks
MAX_ROWS, MAX_SCORES = 1024, 1 << 18  # in VMEM at a time
TINY = float(jnp.finfo(jnp.float32).tiny)  # keeps rows of padding, which attend to nothing, from dividing by zero
MIN_FRESH = 8  # fresh rows: Mosaic has no product with a single row


def attend(call: AttentionCall, interpret: bool | None = None) -> Float[Array, "b k r c"]:
    """Computes the attention of each row.

    Args:
        interpret: run in Pallas's interpreter; None does so without a TPU.

    Raises:
        NotImplementedError: the call has no prefix, or a cache that the kernel cannot read in place.
    """
    if not call.slots:
        raise NotImplementedError("there is no committed prefix to stream")
    if call.fresh[0].shape[2] > call.num_visible:
        raise NotImplementedError("there are fresh rows beyond the columns of the mask")
    if interpret is None:
        interpret = jax.default_backend() != "tpu"
    batch, heads, _, size = call.q.shape
    if not interpret and (size % LANES or call.slots % SUBLANES):
        raise NotImplementedError(
            f"{call.slots} slots of {size}: unless they are multiples of {SUBLANES} and {LANES}, XLA:TPU uses another "
            "memory layout, and the kernel would get a copy of the cache"
        )
    tiling = Tiling.of(call)
    steps, start = _steps(call, tiling.block)
    cache_rows = jnp.arange(batch, dtype=jnp.int32) if call.cache_rows is None else call.cache_rows.astype(jnp.int32)
    scalars = call.length.astype(jnp.int32), start, steps[None], cache_rows
    arrays, specs = _inputs(call, tiling)
    if not interpret:  # or XLA copies the whole cache to VMEM before the kernel starts
        arrays[-2:] = (pltpu.with_memory_space_constraint(part, pltpu.HBM) for part in arrays[-2:])
    rows = pl.BlockSpec((None, tiling.heads, tiling.rows, size), lambda b, t, k, i, *_: (b, k, t, 0))
    sums = [(tiling.heads, tiling.rows, width) for width in (1, 1, size)]
    kernel = functools.partial(_kernel, tiling=tiling, softcap=call.softcap, windows=call.first is not None)
    mixed = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch, tiling.tiles, heads // tiling.heads, steps),
            in_specs=specs,
            out_specs=rows,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in sums],
        ),
        out_shape=jax.ShapeDtypeStruct(arrays[0].shape, call.q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
        cost_estimate=_cost(call, tiling),
        interpret=interpret,
        name="tree_attention",
    )(*scalars, *arrays)
    return _unpadded(mixed, call)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How a call is divided into grid steps.

    Attributes:
        nodes: nodes of a request, padded to whole tiles.
        rows: rows of a tile: all queries of a kv head, or of one query head and some of the nodes.
        tiles: tiles of a kv head.
        heads: kv heads of a step.
        block: cache positions of a step.
        ragged: whether the last block extends beyond the cache.
    """

    nodes: int
    rows: int
    tiles: int
    heads: int
    block: int
    ragged: bool

    @staticmethod
    def of(call: AttentionCall) -> "Tiling":
        max_rows = MAX_ROWS if call.visible.shape[2] <= MAX_ROWS // 2 else MAX_ROWS // 2
        if call.group * call.nodes <= max_rows:
            rows, tiles, nodes = call.group * call.nodes, 1, call.nodes
        else:
            parts = -(-call.nodes // max_rows)
            rows = _round_up(-(-call.nodes // parts), SUBLANES)
            tiles, nodes = call.group * parts, rows * parts
        kv_heads = call.q.shape[1]
        heads = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and (n == 1 or n * rows <= MAX_ROWS // 2))
        block = _block(call.slots, min(MAX_ROWS, max(LANES, MAX_SCORES // rows // LANES * LANES)))
        return Tiling(nodes, rows, tiles, heads, block, ragged=call.slots % block != 0)


def _block(slots: int, max_block: int) -> int:
    """Returns the positions of a step: all, or the largest divisor above half of `max_block`, else `max_block`.

    If the last block extends beyond the cache, every step has to mask the values that it reads.
    """
    if _round_up(slots, LANES) <= max_block:
        return _round_up(slots, LANES)
    return next((size for size in range(max_block, max_block // 2, -LANES) if slots % size == 0), max_block)


def _kernel(*refs: Any, tiling: Tiling, softcap: float | None, windows: bool) -> None:
    length, start, steps, _, q, fresh_k, fresh_v, visible, *rest = refs
    first = rest.pop(0) if windows else None
    k, v, out, *sums = rest
    row, step = pl.program_id(0), pl.program_id(3)
    heads = range(tiling.heads)

    @pl.when(step == 0)
    def _fresh() -> None:
        for head in heads:
            masked = jnp.where(
                visible[...].astype(jnp.int32) != 0, scores(q[head], fresh_k[head], softcap), MASKED_SCORE
            )
            _store(sums, head, add_keys(empty_state(q.shape[1:]), masked, fresh_v[head]))

    at = (start[row] + step) * tiling.block

    @pl.when(at < length[row])
    def _prefix() -> None:
        slot = at + jax.lax.broadcasted_iota(jnp.int32, (tiling.rows, tiling.block), 1)
        committed = slot < length[row]
        if first is not None:
            committed = committed & (slot >= first[...])
        for head in heads:
            values = v[head]
            if tiling.ragged:  # values beyond the cache are arbitrary, and 0 * nan is nan
                value_slot = at + jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
                values = jnp.where(value_slot < length[row], values, jnp.zeros_like(values))
            masked = jnp.where(committed, scores(q[head], k[head], softcap), MASKED_SCORE)
            _store(sums, head, add_keys(tuple(ref[head] for ref in sums), masked, values))

    @pl.when(step == steps[0] - 1)
    def _last() -> None:
        for head in heads:
            _, total, mixed = (ref[head] for ref in sums)
            out[head] = (mixed / jnp.maximum(total, TINY)).astype(out.dtype)


def _store(refs: list[Any], head: int, sums: Any) -> None:
    for ref, value in zip(refs, sums, strict=True):
        ref[head] = value


def _steps(call: AttentionCall, block: int) -> tuple[Int[Array, ""], Int[Array, "b"]]:
    """Returns the number of blocks of the longest row, at least 1, and the first block of each row."""
    start = jnp.zeros_like(call.length, jnp.int32)
    if call.first is not None:
        start = jnp.maximum(jnp.min(call.first, axis=1), 0).astype(jnp.int32) // block
    blocks = -(-call.length.astype(jnp.int32) // block) - start
    return jnp.maximum(jnp.max(blocks), 1), start


def _inputs(call: AttentionCall, tiling: Tiling) -> tuple[list[Array], list[pl.BlockSpec]]:
    """Returns the padded arrays, and for each the part that a grid step reads."""
    size, fresh = call.q.shape[3], max(call.visible.shape[2], MIN_FRESH)
    q = _pad(call.q.reshape(*call.q.shape[:2], call.group, call.nodes, size), 3, tiling.nodes)
    visible = _pad(_pad(call.visible.astype(jnp.int8), 2, fresh), 1, tiling.nodes)
    heads_per_tile = max(tiling.rows // tiling.nodes, 1)  # query heads of a tile, which share a mask
    parts = max(tiling.nodes // tiling.rows, 1)  # tiles of a query head

    def by_rows(b: Any, t: Any, k: Any, i: Any, *_: Any) -> tuple[Any, ...]:
        return b, t % parts, 0

    def block(b: Any, t: Any, k: Any, i: Any, length: Any, start: Any, _: Any, cache_rows: Any) -> tuple[Any, ...]:
        last = jnp.maximum((length[b] - 1) // tiling.block, 0)
        return cache_rows[b], k, jnp.minimum(start[b] + i, last), 0

    arrays = [q.reshape(*call.q.shape[:2], -1, size), *(_pad(part, 2, fresh) for part in call.fresh)]
    arrays.append(jnp.tile(visible, (1, heads_per_tile, 1)))
    specs = [
        pl.BlockSpec((None, tiling.heads, tiling.rows, size), lambda b, t, k, i, *_: (b, k, t, 0)),
        *[pl.BlockSpec((None, tiling.heads, fresh, size), lambda b, t, k, i, *_: (b, k, 0, 0))] * 2,
        pl.BlockSpec((None, tiling.rows, fresh), by_rows),
    ]
    if call.first is not None:
        arrays.append(jnp.tile(_pad(call.first.astype(jnp.int32), 1, tiling.nodes), (1, heads_per_tile))[..., None])
        specs.append(pl.BlockSpec((None, tiling.rows, 1), by_rows))
    streamed = pl.BlockSpec((None, tiling.heads, tiling.block, size), block)
    return [*arrays, *call.prefix], [*specs, streamed, streamed]


def _unpadded(mixed: Float[Array, "b k p c"], call: AttentionCall) -> Float[Array, "b k r c"]:
    batch, heads, _, size = mixed.shape
    return mixed.reshape(batch, heads, call.group, -1, size)[:, :, :, : call.nodes].reshape(call.q.shape)


def _cost(call: AttentionCall, tiling: Tiling) -> pl.CostEstimate:
    """Estimates the cost for the compiler: a full cache, read once for every tile of rows."""
    batch, heads, rows, size = call.q.shape
    columns = call.slots + call.visible.shape[2]
    read = 2 * columns * size * tiling.tiles * call.prefix[0].dtype.itemsize
    return pl.CostEstimate(
        flops=4 * batch * heads * rows * columns * size,
        bytes_accessed=batch * heads * (read + 2 * rows * size * call.q.dtype.itemsize) + call.visible.size,
        transcendentals=batch * heads * rows * columns,
    )


def _pad(array: Array, axis: int, size: int) -> Array:
    """Appends zeros. Rows of padding attend to nothing, and their results are dropped."""
    if array.shape[axis] == size:
        return array
    return jnp.pad(array, [(0, size - array.shape[axis] if i == axis else 0) for i in range(array.ndim)])


def _round_up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple
