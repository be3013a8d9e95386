"""Tree attention for TPUs: the cache is streamed through VMEM once, up to each row's own length and no further.

A grid step reads one block of slots of a few kv heads. How many steps there are follows from the lengths, which the
chip knows before the kernel starts; a row that is shorter than the longest asks for the block it already has, which
costs no traffic. Every node sees the whole prefix, so but for windows only the end of a row is masked. The fresh rows,
masked by ancestors, come with the first block, and the softmax runs over both as they come.

    grid: request, tile of rows, kv heads, block of slots      the last one fastest

Compiled for v5e, v5p and v6e by `benchmarks.compile_only.tpu_slice` and run in Pallas's interpreter by the tests.
The first load on a TPU measures it there and takes it where it is right and faster (`ops.choice`).
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

from eagle_jax.ops.attention_call import UNSEEN, AttentionCall, absorb, nothing, scores

LANES, SUBLANES = 128, 32  # of a register tile of bytes, as masks have them
ROWS, SCORES = 1024, 1 << 18  # maximum of rows, and of scores, in VMEM at a time
TINY = float(jnp.finfo(jnp.float32).tiny)  # keeps rows of padding, which see nothing, from dividing by zero
MIN_FRESH_ROWS = 8  # Mosaic cannot multiply by a single row


def attend(case: AttentionCall, interpret: bool | None = None) -> Float[Array, "b k r c"]:
    """Computes the average over all that each row sees.

    Args:
        interpret: run in Pallas's interpreter; None does so where there is no TPU.

    Raises:
        NotImplementedError: a case without a prefix, or a cache that the kernel could not read where it lies.
    """
    if not case.slots:
        raise NotImplementedError("there is no committed prefix to stream")
    if case.fresh[0].shape[2] > case.named:
        raise NotImplementedError("there are fresh rows that only one node each sees")
    if interpret is None:
        interpret = jax.default_backend() != "tpu"
    batch, heads, _, size = case.q.shape
    if not interpret and (size % LANES or case.slots % SUBLANES):
        raise NotImplementedError(
            f"{case.slots} slots of {size}: unless they are multiples of {SUBLANES} and {LANES}, XLA:TPU has its own "
            "way of laying them in memory, and the kernel would be given a copy of the cache"
        )
    tiling = Tiling.of(case)
    steps, start = _steps(case, tiling.block)
    cache_rows = jnp.arange(batch, dtype=jnp.int32) if case.cache_rows is None else case.cache_rows.astype(jnp.int32)
    scalars = case.length.astype(jnp.int32), start, steps[None], cache_rows
    arrays, specs = _inputs(case, tiling)
    if not interpret:  # XLA would like to bring the whole cache closer before the kernel starts
        arrays[-2:] = (pltpu.with_memory_space_constraint(part, pltpu.HBM) for part in arrays[-2:])
    rows = pl.BlockSpec((None, tiling.heads, tiling.rows, size), lambda b, t, k, i, *_: (b, k, t, 0))
    sums = [(tiling.heads, tiling.rows, width) for width in (1, 1, size)]
    kernel = functools.partial(_kernel, tiling=tiling, softcap=case.softcap, windows=case.first is not None)
    mixed = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch, tiling.tiles, heads // tiling.heads, steps),
            in_specs=specs,
            out_specs=rows,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in sums],
        ),
        out_shape=jax.ShapeDtypeStruct(arrays[0].shape, case.q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
        cost_estimate=_cost(case, tiling),
        interpret=interpret,
        name="tree_attention",
    )(*scalars, *arrays)
    return _unpadded(mixed, case)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The division of a case into grid steps.

    Attributes:
        nodes: nodes of a request; more than there are only where tiles do not divide them.
        rows: rows of a tile: all queries of a kv head, or those of one query head's part of the nodes.
        tiles: tiles of a kv head.
        heads: kv heads of a step.
        block: slots of a step.
        ragged: whether the last block reaches beyond the cache.
    """

    nodes: int
    rows: int
    tiles: int
    heads: int
    block: int
    ragged: bool

    @staticmethod
    def of(case: AttentionCall) -> "Tiling":
        limit = ROWS if case.visible.shape[2] <= ROWS // 2 else ROWS // 2
        if case.group * case.nodes <= limit:
            rows, tiles, nodes = case.group * case.nodes, 1, case.nodes
        else:
            parts = -(-case.nodes // limit)
            rows = _up(-(-case.nodes // parts), SUBLANES)
            tiles, nodes = case.group * parts, rows * parts
        kv_heads = case.q.shape[1]
        heads = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and (n == 1 or n * rows <= ROWS // 2))
        block = _block(case.slots, min(ROWS, max(LANES, SCORES // rows // LANES * LANES)))
        return Tiling(nodes, rows, tiles, heads, block, ragged=case.slots % block != 0)


def _block(slots: int, limit: int) -> int:
    """Returns the slots of a grid step: all, or their largest divisor in `limit // 2 .. limit`, if there is one.

    Every step needs a mask if the last block extends beyond the cache.
    """
    if _up(slots, LANES) <= limit:
        return _up(slots, LANES)
    return next((size for size in range(limit, limit // 2, -LANES) if slots % size == 0), limit)


def _kernel(*refs: Any, tiling: Tiling, softcap: float | None, windows: bool) -> None:
    length, start, steps, _, q, fresh_k, fresh_v, visible, *rest = refs
    first = rest.pop(0) if windows else None
    k, v, out, *sums = rest
    row, step = pl.program_id(0), pl.program_id(3)
    heads = range(tiling.heads)

    @pl.when(step == 0)
    def _fresh() -> None:
        for head in heads:
            masked_scores = jnp.where(
                visible[...].astype(jnp.int32) != 0, scores(q[head], fresh_k[head], softcap), UNSEEN
            )
            _keep(sums, head, absorb(nothing(q.shape[1:]), masked_scores, fresh_v[head]))

    at = (start[row] + step) * tiling.block

    @pl.when(at < length[row])
    def _prefix() -> None:
        slot = at + jax.lax.broadcasted_iota(jnp.int32, (tiling.rows, tiling.block), 1)
        committed = slot < length[row]
        if first is not None:
            committed = committed & (slot >= first[...])
        for head in heads:
            values = v[head]
            if tiling.ragged:  # beyond the cache there may be anything, and nothing times anything may be no number
                value_slot = at + jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
                values = jnp.where(value_slot < length[row], values, jnp.zeros_like(values))
            masked_scores = jnp.where(committed, scores(q[head], k[head], softcap), UNSEEN)
            _keep(sums, head, absorb(tuple(ref[head] for ref in sums), masked_scores, values))

    @pl.when(step == steps[0] - 1)
    def _last() -> None:
        for head in heads:
            _, total, mixed = (ref[head] for ref in sums)
            out[head] = (mixed / jnp.maximum(total, TINY)).astype(out.dtype)


def _keep(refs: list[Any], head: int, sums: Any) -> None:
    for ref, value in zip(refs, sums, strict=True):
        ref[head] = value


def _steps(case: AttentionCall, block: int) -> tuple[Int[Array, ""], Int[Array, "b"]]:
    """Blocks of the row that has most, at least 1, and the block that each row begins with."""
    start = jnp.zeros_like(case.length, jnp.int32)
    if case.first is not None:
        start = jnp.maximum(jnp.min(case.first, axis=1), 0).astype(jnp.int32) // block
    blocks = -(-case.length.astype(jnp.int32) // block) - start
    return jnp.maximum(jnp.max(blocks), 1), start


def _inputs(case: AttentionCall, tiling: Tiling) -> tuple[list[Array], list[pl.BlockSpec]]:
    """Returns arrays with their padding, and which part of each a step reads."""
    size, fresh = case.q.shape[3], max(case.visible.shape[2], MIN_FRESH_ROWS)
    q = _pad(case.q.reshape(*case.q.shape[:2], case.group, case.nodes, size), 3, tiling.nodes)
    visible = _pad(_pad(case.visible.astype(jnp.int8), 2, fresh), 1, tiling.nodes)
    heads_per_tile = max(tiling.rows // tiling.nodes, 1)  # query heads of a tile; masks are the same for all of them
    parts = max(tiling.nodes // tiling.rows, 1)  # tiles of a query head

    def by_rows(b: Any, t: Any, k: Any, i: Any, *_: Any) -> tuple[Any, ...]:
        return b, t % parts, 0

    def block(b: Any, t: Any, k: Any, i: Any, length: Any, start: Any, _: Any, cache_rows: Any) -> tuple[Any, ...]:
        last = jnp.maximum((length[b] - 1) // tiling.block, 0)
        return cache_rows[b], k, jnp.minimum(start[b] + i, last), 0

    arrays = [q.reshape(*case.q.shape[:2], -1, size), *(_pad(part, 2, fresh) for part in case.fresh)]
    arrays.append(jnp.tile(visible, (1, heads_per_tile, 1)))
    specs = [
        pl.BlockSpec((None, tiling.heads, tiling.rows, size), lambda b, t, k, i, *_: (b, k, t, 0)),
        *[pl.BlockSpec((None, tiling.heads, fresh, size), lambda b, t, k, i, *_: (b, k, 0, 0))] * 2,
        pl.BlockSpec((None, tiling.rows, fresh), by_rows),
    ]
    if case.first is not None:
        arrays.append(jnp.tile(_pad(case.first.astype(jnp.int32), 1, tiling.nodes), (1, heads_per_tile))[..., None])
        specs.append(pl.BlockSpec((None, tiling.rows, 1), by_rows))
    streamed = pl.BlockSpec((None, tiling.heads, tiling.block, size), block)
    return [*arrays, *case.prefix], [*specs, streamed, streamed]


def _unpadded(mixed: Float[Array, "b k p c"], case: AttentionCall) -> Float[Array, "b k r c"]:
    batch, heads, _, size = mixed.shape
    return mixed.reshape(batch, heads, case.group, -1, size)[:, :, :, : case.nodes].reshape(case.q.shape)


def _cost(case: AttentionCall, tiling: Tiling) -> pl.CostEstimate:
    """Returns the cost estimate for the compiler: a full cache, read once for every tile of rows."""
    batch, heads, rows, size = case.q.shape
    columns = case.slots + case.visible.shape[2]
    read = 2 * columns * size * tiling.tiles * case.prefix[0].dtype.itemsize
    return pl.CostEstimate(
        flops=4 * batch * heads * rows * columns * size,
        bytes_accessed=batch * heads * (read + 2 * rows * size * case.q.dtype.itemsize) + case.visible.size,
        transcendentals=batch * heads * rows * columns,
    )


def _pad(array: Array, axis: int, size: int) -> Array:
    """Appends zeros. Rows of padding see nothing, and their results are dropped."""
    if array.shape[axis] == size:
        return array
    return jnp.pad(array, [(0, size - array.shape[axis] if i == axis else 0) for i in range(array.ndim)])


def _up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple
