"""Tree attention of an `attention_call.AttentionCall` in float32; each kv head of each request is a task."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.cpu.arguments import cache_rows
from eagle_jax.ops.cpu.blocks import BLOCK, MAX_WIDTH, SUMS, KeyMask, Rows, attend_keys, cached_head
from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import I32, I64, LANES, WORD, alloca, at, clamp, for_range, i64, minimum, read, write
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, run_phases

NAME, WINDOWED = "eagle_jax_attention", "eagle_jax_attention_windowed"


def attend(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Computes the attention of each row over the keys it attends to.

    Raises:
        NotImplementedError: the call is not supported.
    """
    size = call.q.shape[-1]
    kinds = {part.dtype for part in (call.q, *call.fresh, *call.prefix)}
    if kinds != {jnp.dtype(jnp.float32)} or size % LANES or size > MAX_WIDTH:
        raise NotImplementedError(f"it computes in float32, with heads of a multiple of {LANES} up to {MAX_WIDTH}")
    if call.softcap is not None or call.num_visible != call.fresh[0].shape[2]:
        raise NotImplementedError("softcap, and fresh rows beyond the columns of the mask, are not supported")
    visible = jnp.pad(call.visible, ((0, 0), (0, 0), (0, -call.num_visible % BLOCK)))
    cached = *call.prefix, call.length, cache_rows(call.cache_rows, len(call.q))
    count = jnp.full(len(call.q), call.nodes, jnp.int32) if call.count is None else call.count
    buffers = [_compact(call), *call.fresh, visible.astype(jnp.int8), *cached, count]
    name = NAME
    if call.first is not None:
        name, buffers = WINDOWED, [*buffers, call.first]
    sums = jax.ShapeDtypeStruct((*call.q.shape[:-1], 2, LANES), jnp.float32)
    return _scatter(call, jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(call.q.shape, jnp.float32), sums])(*buffers)[0])


def _compact(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Puts the queries of nodes that are not padding first: row `g count + i` is query g at node i."""
    if call.count is None:
        return call.q
    count, row = jnp.maximum(call.count, 1)[:, None], jnp.arange(call.q.shape[2], dtype=jnp.int32)[None]
    source = jnp.minimum(row // count * call.nodes + row % count, call.q.shape[2] - 1)
    return jnp.take_along_axis(call.q, source[:, None, :, None], axis=2)


def _scatter(call: AttentionCall, rows: Float[Array, "b k r c"]) -> Float[Array, "b k r c"]:
    """Returns results in the order of `call.q`; zeros for nodes of padding."""
    if call.count is None:
        return rows
    row = jnp.arange(call.q.shape[2], dtype=jnp.int32)[None]
    query, node, count = row // call.nodes, row % call.nodes, call.count[:, None]
    source = jnp.where(node < count, query * count + node, 0)
    return jnp.where((node < count)[:, None, :, None], jnp.take_along_axis(rows, source[:, None, :, None], axis=2), 0)


def names() -> list[str]:
    """Returns the names of the handlers."""
    return [NAME, WINDOWED]


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for name, windowed in ((NAME, False), (WINDOWED, True)):
        add_handler(module, name, _signature(windowed), functools.partial(_body, windowed=windowed))


def _signature(windowed: bool) -> Signature:
    """Rows r of each of k kv heads; m fresh rows, a mask for n nodes; w rows of the cache and u slots."""
    arguments = {
        "q": "float32[b, k, r, c]",
        **dict.fromkeys(("keys", "values"), "float32[b, k, m, c]"),
        "visible": "int8[b, n, p]",
        **dict.fromkeys(("prefix_keys", "prefix_values"), "float32[w, k, u, c]"),
        **dict.fromkeys(("length", "cache_rows", "count"), "int32[b]"),
    }
    return Signature(
        arguments=arguments | ({"first": "int32[b, n]"} if windowed else {}),
        results={"y": "float32[b, k, r, c]", "sums": f"float32[b, k, r, 2, {LANES}]"},
        relations=["n >= 1", "w >= 1", f"c % {LANES} == 0", f"c <= {MAX_WIDTH}", f"p % {LANES} == 0", "p >= m"],
    )


def _body(call: Call, windowed: bool) -> None:
    builder = call.builder
    q, keys, visible, prefix_keys = (call.arguments[index] for index in (0, 1, 3, 4))
    requests, heads, rows, size = (q.size(axis) for axis in range(4))
    fresh, slots, nodes, padded = keys.size(2), prefix_keys.size(2), visible.size(1), visible.size(2)
    num_cached = prefix_keys.size(0)
    tasks = builder.mul(requests, heads)
    work = builder.mul(builder.mul(tasks, rows), builder.mul(size, builder.add(slots, fresh)))
    data = [buffer.data for buffer in (*call.arguments, *call.results)]
    context_values = [*data, num_cached, heads, rows, size, fresh, slots, nodes, padded]
    head = Phase(tasks, functools.partial(_head, windowed=windowed))
    run_phases(call, [head], builder.lshr(work, i64(4)), context_values)


def _head(builder: ir.IRBuilder, index: ir.Value, context_values: Sequence[ir.Value], windowed: bool) -> None:
    """Builds a task: one kv head of one request."""
    *data, num_cached, heads, all_rows, size, fresh, slots, all_nodes, padded = context_values
    q, keys, values, visible, prefix_keys, prefix_values, length, rows_of, counts, *first, out, sums = data
    request, row = builder.udiv(index, heads), builder.mul(size, i64(WORD))

    def part_of(base: ir.Value, lines: ir.Value, bytes_: ir.Value | int) -> ir.Value:
        """Returns the address of this head's part of a buffer."""
        return at(builder, base, builder.mul(index, lines), bytes_)

    parts = part_of(q, all_rows, row), part_of(out, all_rows, row), part_of(sums, all_rows, SUMS)
    num_valid = clamp(builder, read(builder, at(builder, counts, request, WORD), I32), all_nodes)
    is_empty = builder.icmp_unsigned("==", num_valid, i64(0))
    count, nodes = (
        builder.mul(builder.udiv(all_rows, all_nodes), num_valid),
        builder.select(is_empty, i64(1), num_valid),
    )
    rows = Rows(*parts, count, size, nodes)
    rows.begin(builder)
    committed = clamp(builder, read(builder, at(builder, length, request, WORD), I32), slots)
    committed = builder.select(is_empty, i64(0), committed)
    mask, first_slot = KeyMask("all"), i64(0)
    if windowed:
        mask = KeyMask("window", at(builder, first[0], builder.mul(request, all_nodes), WORD))
        first_slot = _first_visible_block(builder, mask.address, nodes)
    cached = cached_head(builder, index, rows_of, num_cached, heads)
    k_rows, v_rows = (at(builder, base, builder.mul(cached, slots), row) for base in (prefix_keys, prefix_values))
    attend_keys(builder, rows, k_rows, v_rows, first_slot, committed, mask)
    mask = KeyMask("mask", at(builder, visible, builder.mul(request, all_nodes), padded), padded)
    attend_keys(builder, rows, part_of(keys, fresh, row), part_of(values, fresh, row), i64(0), fresh, mask)
    rows.end(builder)


def _first_visible_block(builder: ir.IRBuilder, first: ir.Value, nodes: ir.Value) -> ir.Value:
    """Returns the first slot of the block with the lowest slot that any node attends to."""
    lowest = alloca(builder, 8)
    write(builder, i64(2**62), lowest)
    with for_range(builder, nodes) as node:
        slot = builder.sext(read(builder, at(builder, first, node, WORD), I32), I64)
        clamped_slot = builder.select(builder.icmp_signed("<", slot, i64(0)), i64(0), slot)
        write(builder, minimum(builder, clamped_slot, read(builder, lowest, I64)), lowest)
    return builder.and_(read(builder, lowest, I64), i64(-BLOCK))
