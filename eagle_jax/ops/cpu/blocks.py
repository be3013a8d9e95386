"""Attention of the rows of one kv head over some keys and values, 64 of them at a time.

Keys are turned, and multiplied with all rows; the softmax goes along with the blocks (Milakov and Gimelshein 2018).
Weights are `exp(score) / 2**top`, and where a block has a larger score the sums so far are scaled down by a power of
two, which rounds nothing; all sums go key by key. So what a row gets hangs neither on the other rows, nor on where
blocks end, nor on keys between that it does not see: a node of a tree gets the bits of the same token behind a cache.
"""

import dataclasses
import functools
from collections.abc import Callable

from llvmlite import ir

from eagle_jax.ops.attention_case import NOTHING_SEEN, UNSEEN
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
    at,
    by_tiles,
    counting,
    every,
    everywhere,
    i64,
    internal,
    read,
    room,
    smaller,
    values_of,
    write,
)
from eagle_jax.ops.cpu.math import exp_over, larger, largest, to_the_power, turned, twos
from eagle_jax.ops.cpu.numbers import Singles
from eagle_jax.ops.cpu.places import Places, Strides
from eagle_jax.ops.cpu.tiles import Tiles

BLOCK = 64  # keys at a time
LINE = BLOCK * WORD  # bytes of their scores
WIDEST = 256  # of a head
SUMS = 2 * VECTOR  # bytes of each row: the sum of its weights in every lane of a vector, then its top in one lane


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one kv head: queries of a group of heads times nodes.

    Attributes:
        queries: `[rows, size]`.
        mixed: weighted values so far, of the same shape.
        sums: `[rows, 2, 16]`, see `SUMS`.
        count, size: how many rows, and of what size.
        nodes: row r is of node r % nodes.
    """

    queries: ir.Value
    mixed: ir.Value
    sums: ir.Value
    count: ir.Value
    size: ir.Value
    nodes: ir.Value

    def begin(self, builder: ir.IRBuilder) -> None:
        """They have seen nothing yet."""
        with counting(builder, builder.mul(self.count, self.size), step=LANES) as index:
            write(builder, every(0.0), at(builder, self.mixed, index, WORD))
        with counting(builder, self.count) as row:
            here = at(builder, self.sums, row, SUMS)
            write(builder, every(0.0), here)
            write(builder, ir.Constant(F32, NOTHING_SEEN), at(builder, here, VECTOR))

    def end(self, builder: ir.IRBuilder) -> None:
        """Sums become averages; that of nothing is 0."""
        with counting(builder, self.count) as row:
            total = read(builder, at(builder, self.sums, row, SUMS), FLOATS)
            nothing = builder.fcmp_ordered("==", total, every(0.0))
            self.scale(builder, row, builder.fdiv(every(1.0), builder.select(nothing, every(1.0), total)))

    def scale(self, builder: ir.IRBuilder, row: ir.Value, factor: ir.Value) -> None:
        """What a row has so far, times a number."""
        line = at(builder, self.mixed, row, builder.mul(self.size, i64(WORD)))
        with counting(builder, self.size, step=LANES) as index:
            here = at(builder, line, index, WORD)
            write(builder, builder.fmul(read(builder, here, FLOATS), factor), here)


@dataclasses.dataclass(frozen=True)
class Sight:
    """Which keys each node sees.

    Attributes:
        kind: "all" of them; those that a "mask" names; or those from some slot on, in a "window".
        told: the mask's bytes, or the first slot of each node.
        told_row: bytes of the mask's rows.
    """

    kind: str
    told: ir.Value = NULL
    told_row: ir.Value = dataclasses.field(default_factory=lambda: i64(0))

    def of(self, builder: ir.IRBuilder, node: ir.Value, start: ir.Value, group: ir.Value, count: ir.Value) -> ir.Value:
        """Of the 16 keys of a group, in a block of `count` that begins at slot `start`, which one node sees."""
        first = builder.mul(group, i64(LANES))
        keys = builder.add(_slots(builder, first), ir.Constant(INTEGERS, list(range(LANES))))
        seen = builder.icmp_unsigned("<", keys, _slots(builder, count))
        if self.kind == "mask":
            line = at(builder, at(builder, self.told, node, self.told_row), start)
            named = read(builder, at(builder, line, first), ir.VectorType(I8, LANES))
            seen = builder.and_(seen, builder.icmp_unsigned("!=", named, ir.Constant(named.type, None)))
        if self.kind == "window":
            low = everywhere(builder, read(builder, at(builder, self.told, node, WORD), I32))
            slots = builder.add(keys, _slots(builder, start))
            seen = builder.and_(seen, builder.icmp_signed(">=", slots, low))
        return seen


def _slots(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """A number of slots in every lane; caches have fewer than 2 to the power of 31."""
    return everywhere(builder, builder.trunc(number, I32))


def see(
    builder: ir.IRBuilder, rows: Rows, keys: ir.Value, values: ir.Value, begin: ir.Value, end: ir.Value, sight: Sight
) -> None:
    """Rows see the keys and values of the slots from `begin`, a multiple of `BLOCK`, to `end`."""
    row = builder.mul(rows.size, i64(WORD))
    with counting(builder, end, begin, step=BLOCK) as start:
        count = smaller(builder, builder.sub(end, start), i64(BLOCK))
        here = [at(builder, base, start, row) for base in (keys, values)]
        told = [sight.told, sight.told_row]
        builder.call(_block(builder.module, sight.kind), [*values_of(rows), *here, start, count, *told])


def _block(module: ir.Module, kind: str) -> ir.Function:
    """`see` of one block."""
    name = f"see_{kind}"
    if name in module.globals:
        return module.globals[name]
    kinds = [POINTER] * 3 + [I64] * 3 + [POINTER] * 2 + [I64] * 2 + [POINTER, I64]
    function = internal(module, name, kinds)
    *known, keys, values, start, count, told, told_row = function.args
    rows, sight = Rows(*known), Sight(kind, told, told_row)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    plain, adding = Tiles(module, Singles()), Tiles(module, Singles(adding=True), summing=True)
    rooms = BLOCK * WIDEST * WORD, plain.most_rows * LINE, plain.most_rows * VECTOR
    columns, scores, tops = (room(builder, size) for size in rooms)
    groups = builder.lshr(builder.add(count, i64(LANES - 1)), i64(4))
    row = builder.mul(rows.size, i64(WORD))
    _turn(builder, keys, columns, count, rows.size)

    def some(first: ir.Value, number: int) -> None:
        queries, mixed = (at(builder, base, first, row) for base in (rows.queries, rows.mixed))
        sums = at(builder, rows.sums, first, SUMS)
        by_key = Strides(x_row=row, y_row=i64(LINE), w_column=i64(VECTOR), w_step=i64(LINE))
        plain.few_rows(builder, Places(queries, columns, scores), (number, groups, rows.size), by_key)
        # apart, so that what one row waits for is done beside the others
        with counting(builder, i64(number)) as index:
            node = builder.urem(builder.add(first, index), rows.nodes)
            seen = functools.partial(sight.of, builder, node, start, count=count)
            _mask(builder, at(builder, scores, index, LINE), groups, seen, at(builder, tops, index, VECTOR))
        with counting(builder, i64(number)) as index:
            kept = _raise(builder, at(builder, tops, index, VECTOR), at(builder, sums, index, SUMS))
            rows.scale(builder, builder.add(first, index), kept)
        with counting(builder, i64(number)) as index:
            _weigh(builder, at(builder, scores, index, LINE), groups, at(builder, tops, index, VECTOR))
        by_number = Strides(x_row=i64(LINE), y_row=row, w_column=i64(VECTOR), w_step=row, origin_row=i64(SUMS))
        vectors = builder.lshr(rows.size, i64(4))
        adding.few_rows(builder, Places(scores, values, mixed, origin=sums), (number, vectors, count), by_number)

    by_tiles(builder, rows.count, plain.most_rows, some)
    builder.ret_void()
    return function


def _turn(builder: ir.IRBuilder, keys: ir.Value, columns: ir.Value, count: ir.Value, size: ir.Value) -> None:
    """Keys `[count, size]` to `[size, 64]`; what fills the last group of 16 is like the last key."""
    last = builder.sub(count, i64(1))
    with counting(builder, count, step=LANES) as first:
        slots = [smaller(builder, builder.add(first, i64(lane)), last) for lane in range(LANES)]
        lines = [at(builder, keys, slot, builder.mul(size, i64(WORD))) for slot in slots]
        to = at(builder, columns, first, WORD)
        with counting(builder, size, step=LANES) as begin:
            block = [read(builder, at(builder, line, begin, WORD), FLOATS) for line in lines]
            for index, column in enumerate(turned(builder, block)):
                write(builder, column, at(builder, to, builder.add(begin, i64(index)), LINE))


def _mask(
    builder: ir.IRBuilder, scores: ir.Value, groups: ir.Value, seen: Callable[[ir.Value], ir.Value], tops: ir.Value
) -> None:
    """One row's scores of keys that it does not see become `UNSEEN`; the largest go to `tops`, one for each lane."""
    write(builder, every(UNSEEN), tops)
    with counting(builder, groups) as group:
        place = at(builder, scores, group, VECTOR)
        score = builder.select(seen(group), read(builder, place, FLOATS), every(UNSEEN))
        write(builder, score, place)
        write(builder, larger(builder, score, read(builder, tops, FLOATS)), tops)


def _raise(builder: ir.IRBuilder, tops: ir.Value, sums: ir.Value) -> ir.Value:
    """A row's top becomes that of these scores, if it is larger, and its sum of weights so far is scaled down with it;
    returns the power of two that its values so far have to be scaled with.

    Args:
        tops: where the largest scores are, and then the new top in every lane.
    """
    place = at(builder, sums, VECTOR)
    old = everywhere(builder, read(builder, place, F32))
    highest = everywhere(builder, largest(builder, read(builder, tops, FLOATS)))
    top = larger(builder, twos(builder, highest), old)
    kept = to_the_power(builder, builder.fsub(old, top))
    write(builder, builder.fmul(read(builder, sums, FLOATS), kept), sums)
    write(builder, builder.extract_element(top, ir.Constant(I32, 0)), place)
    write(builder, top, tops)
    return kept


def _weigh(builder: ir.IRBuilder, scores: ir.Value, groups: ir.Value, tops: ir.Value) -> None:
    """Scores of one row become weights; its top is at `tops` in every lane."""
    top = read(builder, tops, FLOATS)
    with counting(builder, groups) as group:
        here = at(builder, scores, group, VECTOR)
        score = read(builder, here, FLOATS)
        seen = builder.fcmp_unordered("!=", score, every(UNSEEN))
        write(builder, builder.select(seen, exp_over(builder, score, top), every(0.0)), here)
