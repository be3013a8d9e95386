"""Phases of the compiled attention block: input rows, projection, attention of each kv head, output projection."""

import functools
from typing import NamedTuple

from llvmlite import ir

from eagle_jax.ops.cpu.arithmetic import FloatArithmetic
from eagle_jax.ops.cpu.blocks import SUMS, KeyMask, Rows, attend_keys, cached_head
from eagle_jax.ops.cpu.calls import Call
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I32,
    I64,
    LANES,
    WORD,
    at,
    clamp,
    for_range,
    i64,
    minimum,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma
from eagle_jax.ops.cpu.packed_linear import AnyTiles, InputRows, Weight, clear, multiply_panel, tiles_for, valid_rows
from eagle_jax.ops.cpu.threads import Phase, run_phases


class _Sizes(NamedTuple):
    """Sizes in elements.

    Attributes:
        nodes: nodes in a row of the batch, of one request or of several.
        num_queries: query heads of a kv head.
        num_draft: rows of earlier draft levels.
        num_cache_rows: rows of the cache.
        padded: bytes of a row of the mask.
    """

    requests: ir.Value
    rows: ir.Value
    nodes: ir.Value
    heads: ir.Value
    num_queries: ir.Value
    head_dim: ir.Value
    num_draft: ir.Value
    num_cache_rows: ir.Value
    slots: ir.Value
    padded: ir.Value
    outputs: ir.Value
    residual: ir.Value


class _Data(NamedTuple):
    """Addresses of buffers."""

    residual: ir.Value
    cosines: ir.Value
    sines: ir.Value
    draft_keys: ir.Value
    draft_values: ir.Value
    visible: ir.Value
    prefix_keys: ir.Value
    prefix_values: ir.Value
    length: ir.Value
    cache_rows: ir.Value
    spans: ir.Value
    factor: ir.Value
    y: ir.Value
    keys: ir.Value
    values: ir.Value
    projected: ir.Value
    queries: ir.Value
    attended: ir.Value
    sums: ir.Value
    concatenated: ir.Value


class _Location(NamedTuple):
    """Location of the rows of one kv head of one request.

    Attributes:
        request, head: numbers.
        first: the request's first row, of those of the whole batch.
        column: the same in its row of the batch.
        count: its rows.
        end: in its row of the batch, where the next request's begin.
        line: its first line of buffers that have a line for each head and row.
    """

    request: ir.Value
    head: ir.Value
    first: ir.Value
    column: ir.Value
    count: ir.Value
    end: ir.Value
    line: ir.Value


class _Context(NamedTuple):
    """Values that the tasks need."""

    input_rows: InputRows
    qkv: Weight
    o: Weight
    data: _Data
    sizes: _Sizes


def build_phases(call: Call, arithmetic: FloatArithmetic) -> None:
    builder = call.builder
    x, residual, eps, scale, qkv, o, *rest = call.arguments
    cosines, sines, draft_keys, draft_values, visible, prefix_keys, prefix_values, *rest = rest
    length, cache_rows, spans, factor, num_valid = rest
    y, keys, values, prepared, projected, queries, attended, sums, concatenated = call.results
    batch, nodes, requests = x.size(0), x.size(1), length.size(0)
    # the valid rows of several rows of a batch are not contiguous: then all are computed
    rows, single = builder.mul(batch, nodes), builder.icmp_unsigned("==", batch, i64(1))
    count = builder.select(single, valid_rows(builder, num_valid, rows), rows)
    input_rows = InputRows(x.data, scale.data, eps.data, prepared.data, scale.size(0), count, x.size(2))
    qkv_weight, o_weight = (Weight.from_buffer(builder, weight, arithmetic) for weight in (qkv, o))
    addresses = [residual, cosines, sines, draft_keys, draft_values, visible, prefix_keys, prefix_values]
    addresses += [length, cache_rows, spans, factor, y, keys, values, projected, queries, attended, sums, concatenated]
    sizes = _Sizes(
        requests,
        rows,
        nodes,
        heads=prefix_keys.size(1),
        num_queries=builder.udiv(queries.size(2), nodes),
        head_dim=prefix_keys.size(3),
        num_draft=draft_keys.size(2),
        num_cache_rows=prefix_keys.size(0),
        slots=prefix_keys.size(2),
        padded=visible.size(2),
        outputs=projected.size(1),
        residual=residual.size(2),
    )
    context = _Context(input_rows, qkv_weight, o_weight, _Data(*(buffer.data for buffer in addresses)), sizes)
    tiles = tiles_for(call.module, arithmetic)
    phases = [
        input_rows.phase(builder, arithmetic),
        Phase(qkv_weight.panels, functools.partial(_project, tiles=tiles)),
        Phase(builder.mul(requests, sizes.heads), functools.partial(_attend, arithmetic=arithmetic)),
        Phase(o_weight.panels, functools.partial(_outputs, tiles=tiles)),
    ]
    vectors = builder.add(qkv_weight.vectors(builder), o_weight.vectors(builder))
    num_keys = builder.add(builder.add(sizes.slots, sizes.num_draft), nodes)
    score_work = builder.mul(builder.mul(sizes.heads, sizes.num_queries), builder.mul(sizes.head_dim, num_keys))
    run_phases(call, phases, builder.mul(count, builder.add(vectors, builder.lshr(score_work, i64(4)))), context)


def _project(builder: ir.IRBuilder, panel: ir.Value, context: _Context, tiles: AnyTiles) -> None:
    count = context.input_rows.count
    multiply_panel(
        builder,
        panel,
        context.qkv,
        tiles,
        context.input_rows.prepared,
        context.data.projected,
        (count, count, context.sizes.outputs),
    )


def _attend(builder: ir.IRBuilder, index: ir.Value, context: _Context, arithmetic: FloatArithmetic) -> None:
    """Builds a task: one kv head of one request."""
    data, sizes, location = context.data, context.sizes, _locate(builder, index, context)
    row, count = builder.mul(sizes.head_dim, i64(WORD)), builder.mul(sizes.num_queries, location.count)

    def part_of(base: ir.Value, lines: ir.Value, bytes_: ir.Value | int) -> ir.Value:
        """Returns the address of this head's part of a buffer with this number of lines for each of its rows."""
        return at(builder, base, builder.mul(location.line, lines), bytes_)

    keys, values = (part_of(base, i64(1), row) for base in (data.keys, data.values))
    queries, attended = (part_of(base, sizes.num_queries, row) for base in (data.queries, data.attended))
    _rotate(builder, location, context, queries, keys, values)
    sums, is_empty = part_of(data.sums, sizes.num_queries, SUMS), builder.icmp_unsigned("==", location.count, i64(0))
    rows = Rows(queries, attended, sums, count, sizes.head_dim, builder.select(is_empty, i64(1), location.count))
    rows.begin(builder)
    committed = clamp(builder, read(builder, at(builder, data.length, location.request, WORD), I32), sizes.slots)
    committed = builder.select(is_empty, i64(0), committed)
    cached = cached_head(builder, index, data.cache_rows, sizes.num_cache_rows, sizes.heads)
    prefix_keys, prefix_values = (
        at(builder, base, builder.mul(cached, sizes.slots), row) for base in (data.prefix_keys, data.prefix_values)
    )
    attend_keys(builder, rows, prefix_keys, prefix_values, i64(0), committed, KeyMask("all"))
    visible = at(builder, data.visible, location.first, sizes.padded)
    drafted = builder.mul(index, sizes.num_draft)  # there are none where requests share a row
    draft_keys, draft_values = (at(builder, base, drafted, row) for base in (data.draft_keys, data.draft_values))
    draft_mask = KeyMask("mask", visible, sizes.padded)
    attend_keys(builder, rows, draft_keys, draft_values, i64(0), sizes.num_draft, draft_mask)
    fresh_mask = KeyMask("mask", at(builder, visible, builder.add(sizes.num_draft, location.column)), sizes.padded)
    attend_keys(builder, rows, keys, values, i64(0), location.count, fresh_mask)
    rows.end(builder)
    padding = builder.mul(location.count, row), builder.mul(builder.sub(location.end, location.column), row)
    for base in (keys, values):
        clear(builder, base, *padding)
    _concatenate(builder, location, context, attended, arithmetic)


def _locate(builder: ir.IRBuilder, index: ir.Value, context: _Context) -> _Location:
    """Returns the location of kv head `index % heads` of request `index // heads`; spans beyond the buffers are cut."""
    sizes = context.sizes
    request, head = builder.udiv(index, sizes.heads), builder.urem(index, sizes.heads)
    span = at(builder, context.data.spans, request, 3 * WORD)
    first, count, end = (read(builder, at(builder, span, i64(part), WORD), I32) for part in range(3))
    # a request without rows may begin where the batch ends, and has none to clear there
    is_beyond = builder.icmp_signed(">=", builder.sext(first, I64), sizes.rows)
    first = clamp(builder, first, builder.sub(sizes.rows, i64(1)))
    row = builder.udiv(first, sizes.nodes)
    column, begin = builder.urem(first, sizes.nodes), builder.mul(row, sizes.nodes)
    end = minimum(builder, builder.sub(clamp(builder, end, sizes.rows), begin), sizes.nodes)
    end = builder.select(builder.or_(is_beyond, builder.icmp_signed("<", end, column)), column, end)
    count = clamp(builder, count, builder.sub(end, column))
    line = builder.add(builder.mul(builder.add(builder.mul(row, sizes.heads), head), sizes.nodes), column)
    return _Location(request, head, first, column, count, end, line)


def _rotate(
    builder: ir.IRBuilder, location: _Location, context: _Context, queries: ir.Value, keys: ir.Value, values: ir.Value
) -> None:
    """Splits projected rows into queries (rotated and scaled), keys (rotated) and values."""
    data, sizes = context.data, context.sizes
    half, row = builder.lshr(sizes.head_dim, i64(1)), builder.mul(sizes.head_dim, i64(WORD))
    first = builder.mul(location.head, builder.mul(builder.add(sizes.num_queries, i64(2)), sizes.head_dim))
    factor = splat(builder, read(builder, data.factor, F32))
    with for_range(builder, location.count) as node:
        token = builder.add(location.first, node)
        line = at(builder, data.projected, builder.add(builder.mul(token, sizes.outputs), first), WORD)
        cosines, sines = (at(builder, base, builder.mul(token, half), WORD) for base in (data.cosines, data.sines))

        def rotate(part: ir.Value, to: ir.Value, scaled: bool) -> None:
            with for_range(builder, half, step=LANES) as lane:
                cos, sin = (read(builder, at(builder, base, lane, WORD), FLOATS) for base in (cosines, sines))
                upper = builder.add(lane, half)
                a, b = (read(builder, at(builder, part, start, WORD), FLOATS) for start in (lane, upper))
                low = fma(builder, a, cos, builder.fneg(builder.fmul(b, sin)))
                high = fma(builder, b, cos, builder.fmul(a, sin))
                for number, target_lane in ((low, lane), (high, upper)):
                    number = builder.fmul(number, factor) if scaled else number
                    write(builder, number, at(builder, to, target_lane, WORD))

        with for_range(builder, sizes.num_queries) as query:
            to = at(builder, queries, builder.add(builder.mul(query, location.count), node), row)
            rotate(at(builder, line, query, row), to, scaled=True)
        rotate(at(builder, line, sizes.num_queries, row), at(builder, keys, node, row), scaled=False)
        value, to = at(builder, line, builder.add(sizes.num_queries, i64(1)), row), at(builder, values, node, row)
        with for_range(builder, sizes.head_dim, step=LANES) as lane:
            write(builder, read(builder, at(builder, value, lane, WORD), FLOATS), at(builder, to, lane, WORD))


def _concatenate(
    builder: ir.IRBuilder, location: _Location, context: _Context, attended: ir.Value, arithmetic: FloatArithmetic
) -> None:
    """Concatenates the results of the query heads, in the dtype of the output projection."""
    sizes = context.sizes
    row_size = builder.mul(builder.mul(sizes.heads, sizes.num_queries), sizes.head_dim)
    with for_range(builder, location.count) as node, for_range(builder, sizes.num_queries) as query:
        token = builder.add(location.first, node)
        column = builder.mul(builder.add(builder.mul(location.head, sizes.num_queries), query), sizes.head_dim)
        to = at(builder, context.data.concatenated, builder.add(builder.mul(token, row_size), column), arithmetic.size)
        line = builder.mul(builder.add(builder.mul(query, location.count), node), sizes.head_dim)
        with for_range(builder, sizes.head_dim, step=LANES) as lane:
            floats = read(builder, at(builder, attended, builder.add(line, lane), WORD), FLOATS)
            write(builder, arithmetic.convert(builder, floats), at(builder, to, lane, arithmetic.size))


def _outputs(builder: ir.IRBuilder, panel: ir.Value, context: _Context, tiles: AnyTiles) -> None:
    data, sizes = context.data, context.sizes
    rows = context.input_rows.count, sizes.rows
    multiply_panel(
        builder, panel, context.o, tiles, data.concatenated, data.y, (*rows, sizes.residual), residual=data.residual
    )
