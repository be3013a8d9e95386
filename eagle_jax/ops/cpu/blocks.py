"""Attention of the query rows of one kv head over keys and values, in blocks of 64 keys.

The keys of a block are transposed and multiplied with all rows; the softmax is computed online (Milakov and Gimelshein
2018). A weight is `exp(score) / 2**maximum`. A block with a larger score scales the sums so far down by a power of
two, which does not round, and all sums run key by key. So the result of a row depends neither on other rows, nor on
block boundaries, nor on masked keys in between: a node of a tree gets the same bits as that token after a cache.
"""

import dataclasses
import functools
from collections.abc import Callable

from llvmlite import ir

from eagle_jax.ops.attention_call import INITIAL_MAX, MASKED_SCORE
from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.arithmetic import Float32Arithmetic
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    INTEGERS,
    LANES,
    NULL,
    POINTER,
    VECTOR,
    WORD,
    alloca,
    at,
    clamp,
    constant,
    field_values,
    for_range,
    for_tiles,
    i64,
    internal_function,
    minimum,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import binary_exponent, exp2, max_lane, maximum, scaled_exp, transposed
from eagle_jax.ops.cpu.tiles import Tiles

BLOCK = 64  # keys
LINE = BLOCK * WORD  # bytes of one row's scores of a block
MAX_WIDTH = 256  # largest head size
SUMS = 2 * VECTOR  # bytes of a row's state: the sum of its weights in every lane, then the maximum in one lane


@dataclasses.dataclass(frozen=True)
class Rows:
    """The query rows of one kv head: its group of query heads times the nodes.

    Attributes:
        queries: address of `[rows, size]`.
        mixed: address of the weighted values so far, of the same shape.
        sums: address of `[rows, 2, 16]`, see `SUMS`.
        count, size: number of rows, head size.
        nodes: row r belongs to node `r % nodes`.
    """

    queries: ir.Value
    mixed: ir.Value
    sums: ir.Value
    count: ir.Value
    size: ir.Value
    nodes: ir.Value

    def begin(self, builder: ir.IRBuilder) -> None:
        """Initializes the state: no key attended to yet."""
        with for_range(builder, builder.mul(self.count, self.size), step=LANES) as index:
            write(builder, constant(0.0), at(builder, self.mixed, index, WORD))
        with for_range(builder, self.count) as row:
            address = at(builder, self.sums, row, SUMS)
            write(builder, constant(0.0), address)
            write(builder, ir.Constant(F32, INITIAL_MAX), at(builder, address, VECTOR))

    def end(self, builder: ir.IRBuilder) -> None:
        """Divides the weighted values by the sums of weights; without any key the result is 0."""
        with for_range(builder, self.count) as row:
            total = read(builder, at(builder, self.sums, row, SUMS), FLOATS)
            nothing = builder.fcmp_ordered("==", total, constant(0.0))
            self.scale(builder, row, builder.fdiv(constant(1.0), builder.select(nothing, constant(1.0), total)))

    def scale(self, builder: ir.IRBuilder, row: ir.Value, factor: ir.Value) -> None:
        """Multiplies the weighted values of a row by a factor."""
        row_address = at(builder, self.mixed, row, builder.mul(self.size, i64(WORD)))
        with for_range(builder, self.size, step=LANES) as index:
            address = at(builder, row_address, index, WORD)
            write(builder, builder.fmul(read(builder, address, FLOATS), factor), address)


@dataclasses.dataclass(frozen=True)
class KeyMask:
    """Which keys each node attends to.

    Attributes:
        kind: "all" keys, those that a "mask" allows, or those from a first slot on (a sliding "window").
        address: of the mask, or of the first slot of each node.
        row_bytes: length of a row of the mask.
    """

    kind: str
    address: ir.Value = NULL
    row_bytes: ir.Value = dataclasses.field(default_factory=lambda: i64(0))

    def allows(
        self, builder: ir.IRBuilder, node: ir.Value, start: ir.Value, group: ir.Value, count: ir.Value
    ) -> ir.Value:
        """Returns 16 bits: which keys of a group one node attends to, in a block of `count` keys from `start`."""
        first = builder.mul(group, i64(LANES))
        keys = builder.add(_slots(builder, first), ir.Constant(INTEGERS, list(range(LANES))))
        visible = builder.icmp_unsigned("<", keys, _slots(builder, count))
        if self.kind == "mask":
            row_address = at(builder, at(builder, self.address, node, self.row_bytes), start)
            allowed = read(builder, at(builder, row_address, first), ir.VectorType(I8, LANES))
            visible = builder.and_(visible, builder.icmp_unsigned("!=", allowed, ir.Constant(allowed.type, None)))
        if self.kind == "window":
            first_slot = splat(builder, read(builder, at(builder, self.address, node, WORD), I32))
            slots = builder.add(keys, _slots(builder, start))
            visible = builder.and_(visible, builder.icmp_signed(">=", slots, first_slot))
        return visible


def _slots(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """Returns a number of slots in every lane of 32 bits; caches have fewer than 2**31 slots."""
    return splat(builder, builder.trunc(number, I32))


def attend_keys(
    builder: ir.IRBuilder, rows: Rows, keys: ir.Value, values: ir.Value, begin: ir.Value, end: ir.Value, mask: KeyMask
) -> None:
    """Adds the keys and values of the slots from `begin`, a multiple of `BLOCK`, to `end` to the state of the rows."""
    row = builder.mul(rows.size, i64(WORD))
    with for_range(builder, end, begin, step=BLOCK) as start:
        count = minimum(builder, builder.sub(end, start), i64(BLOCK))
        block = [at(builder, base, start, row) for base in (keys, values)]
        arguments = [*field_values(rows), *block, start, count, mask.address, mask.row_bytes]
        builder.call(_block(builder.module, mask.kind), arguments)


def _block(module: ir.Module, kind: str) -> ir.Function:
    """Returns `attend_keys` for one block, as a function."""
    name = f"attend_block_{kind}"
    if name in module.globals:
        return module.globals[name]
    kinds = [POINTER] * 3 + [I64] * 3 + [POINTER] * 2 + [I64] * 2 + [POINTER, I64]
    function = internal_function(module, name, kinds)
    *context, keys, values, start, count, address, row_bytes = function.args
    rows, mask = Rows(*context), KeyMask(kind, address, row_bytes)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    score_tiles = Tiles(module, Float32Arithmetic())
    value_tiles = Tiles(module, Float32Arithmetic(accumulates=True), row_sums=True)
    sizes = BLOCK * MAX_WIDTH * WORD, score_tiles.max_rows * LINE, score_tiles.max_rows * VECTOR
    columns, scores, maxima = (alloca(builder, size) for size in sizes)
    groups = builder.lshr(builder.add(count, i64(LANES - 1)), i64(4))
    row = builder.mul(rows.size, i64(WORD))
    _transpose_keys(builder, keys, columns, count, rows.size)

    def attend_rows(first: ir.Value, number: int) -> None:
        queries, mixed = (at(builder, base, first, row) for base in (rows.queries, rows.mixed))
        sums = at(builder, rows.sums, first, SUMS)
        by_key = Strides(x_row=row, y_row=i64(LINE), w_column=i64(VECTOR), w_step=i64(LINE))
        score_tiles.multiply_rows(builder, Addresses(queries, columns, scores), (number, groups, rows.size), by_key)
        # separate loops, so that the latencies of different rows overlap
        with for_range(builder, i64(number)) as index:
            node = builder.urem(builder.add(first, index), rows.nodes)
            visible = functools.partial(mask.allows, builder, node, start, count=count)
            _mask_scores(builder, at(builder, scores, index, LINE), groups, visible, at(builder, maxima, index, VECTOR))
        with for_range(builder, i64(number)) as index:
            scale_down = _update_maximum(builder, at(builder, maxima, index, VECTOR), at(builder, sums, index, SUMS))
            rows.scale(builder, builder.add(first, index), scale_down)
        with for_range(builder, i64(number)) as index:
            _to_weights(builder, at(builder, scores, index, LINE), groups, at(builder, maxima, index, VECTOR))
        by_number = Strides(x_row=i64(LINE), y_row=row, w_column=i64(VECTOR), w_step=row, origin_row=i64(SUMS))
        vectors = builder.lshr(rows.size, i64(4))
        value_tiles.multiply_rows(
            builder, Addresses(scores, values, mixed, origin=sums), (number, vectors, count), by_number
        )

    for_tiles(builder, rows.count, score_tiles.max_rows, attend_rows)
    builder.ret_void()
    return function


def _transpose_keys(builder: ir.IRBuilder, keys: ir.Value, columns: ir.Value, count: ir.Value, size: ir.Value) -> None:
    """Transposes keys `[count, size]` to `[size, 64]`; the last key fills up the last group of 16."""
    last = builder.sub(count, i64(1))
    with for_range(builder, count, step=LANES) as first:
        slots = [minimum(builder, builder.add(first, i64(lane)), last) for lane in range(LANES)]
        row_addresses = [at(builder, keys, slot, builder.mul(size, i64(WORD))) for slot in slots]
        destination = at(builder, columns, first, WORD)
        with for_range(builder, size, step=LANES) as begin:
            block = [read(builder, at(builder, row_address, begin, WORD), FLOATS) for row_address in row_addresses]
            for index, column in enumerate(transposed(builder, block)):
                write(builder, column, at(builder, destination, builder.add(begin, i64(index)), LINE))


def _mask_scores(
    builder: ir.IRBuilder, scores: ir.Value, groups: ir.Value, visible: Callable[[ir.Value], ir.Value], maxima: ir.Value
) -> None:
    """Sets one row's scores of masked keys to `MASKED_SCORE`, and stores the largest score of each lane in `maxima`."""
    write(builder, constant(MASKED_SCORE), maxima)
    with for_range(builder, groups) as group:
        address = at(builder, scores, group, VECTOR)
        score = builder.select(visible(group), read(builder, address, FLOATS), constant(MASKED_SCORE))
        write(builder, score, address)
        write(builder, maximum(builder, score, read(builder, maxima, FLOATS)), maxima)


def _update_maximum(builder: ir.IRBuilder, maxima: ir.Value, sums: ir.Value) -> ir.Value:
    """Raises a row's maximum to that of these scores, and scales its sum of weights accordingly.

    Args:
        maxima: address of the largest score of each lane; then of the new maximum, as an exponent of 2, in every lane.

    Returns:
        The power of two that the row's weighted values so far have to be multiplied with.
    """
    address = at(builder, sums, VECTOR)
    old = splat(builder, read(builder, address, F32))
    highest = splat(builder, max_lane(builder, read(builder, maxima, FLOATS)))
    new = maximum(builder, binary_exponent(builder, highest), old)
    scale_down = exp2(builder, builder.fsub(old, new))
    write(builder, builder.fmul(read(builder, sums, FLOATS), scale_down), sums)
    write(builder, builder.extract_element(new, ir.Constant(I32, 0)), address)
    write(builder, new, maxima)
    return scale_down


def _to_weights(builder: ir.IRBuilder, scores: ir.Value, groups: ir.Value, maxima: ir.Value) -> None:
    """Replaces the scores of one row by weights, relative to the maximum at `maxima`."""
    exponent = read(builder, maxima, FLOATS)
    with for_range(builder, groups) as group:
        address = at(builder, scores, group, VECTOR)
        score = read(builder, address, FLOATS)
        visible = builder.fcmp_unordered("!=", score, constant(MASKED_SCORE))
        write(builder, builder.select(visible, scaled_exp(builder, score, exponent), constant(0.0)), address)


def cached_head(
    builder: ir.IRBuilder, index: ir.Value, cache_rows: ir.Value, num_rows: ir.Value, heads: ir.Value
) -> ir.Value:
    """Returns the place of kv head `index % heads` of request `index // heads` among those of `num_rows` cache rows.

    Args:
        cache_rows: address of the requests' rows.
    """
    request, head = builder.udiv(index, heads), builder.urem(index, heads)
    row = clamp(builder, read(builder, at(builder, cache_rows, request, WORD), I32), builder.sub(num_rows, i64(1)))
    return builder.add(builder.mul(row, heads), head)
