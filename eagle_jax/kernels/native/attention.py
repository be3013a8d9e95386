"""Tree attention: `kernels.base.Case` in float32.

Keys are read 64 at a time, turned, and multiplied with all rows of their head; the softmax goes along with the blocks
(Milakov and Gimelshein 2018). Blocks are cut by slot: what a row gets does not hang on the other rows.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.kernels.base import NOTHING_SEEN, UNSEEN, Case
from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import (
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    LANES,
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
    write,
)
from eagle_jax.kernels.native.math import exp, larger, largest, summed, turned
from eagle_jax.kernels.native.threads import share
from eagle_jax.kernels.native.tiles import MOST_ROWS, Strides, Tiles

BLOCK = 64  # keys at a time
LINE = BLOCK * WORD  # bytes of their scores
WIDEST = 256  # of a head
SUMS = 2 * WORD  # of each row: the largest score so far, and the sum of the weights
NAME, WINDOWED = "eagle_jax_attention", "eagle_jax_attention_windowed"


def attend(case: Case) -> Float[Array, "b k r c"]:
    """The average over all that each row sees.

    Raises:
        NotImplementedError: the case is none of those that it is made for.
    """
    size = case.q.shape[-1]
    kinds = {part.dtype for part in (case.q, *case.fresh, *case.prefix)}
    if kinds != {jnp.dtype(jnp.float32)} or size % LANES or size > WIDEST:
        raise NotImplementedError(f"it computes in float32, with heads of a multiple of {LANES} up to {WIDEST}")
    if case.softcap is not None or case.named != case.fresh[0].shape[2]:
        raise NotImplementedError("it has no softcap, and a mask names all fresh rows")
    visible = jnp.pad(case.visible, ((0, 0), (0, 0), (0, -case.named % BLOCK)))
    given = [case.q, *case.fresh, visible.astype(jnp.int8), *case.prefix, case.length]
    name = NAME
    if case.first is not None:
        name, given = WINDOWED, [*given, case.first]
    sums = jax.ShapeDtypeStruct((*case.q.shape[:-1], 2), jnp.float32)
    return jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(case.q.shape, jnp.float32), sums])(*given)[0]


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    add_handler(module, NAME, functools.partial(_body, windowed=False), arguments=7, results=2)
    add_handler(module, WINDOWED, functools.partial(_body, windowed=True), arguments=8, results=2)


def _body(call: Call, windowed: bool) -> None:
    builder = call.builder
    q, keys, visible, old_keys = (call.arguments[index] for index in (0, 1, 3, 4))
    requests, heads, rows, size = (q.size(axis) for axis in range(4))
    fresh, slots, nodes, padded = keys.size(2), old_keys.size(2), visible.size(1), visible.size(2)
    data = [one.data for one in (*call.arguments, *call.results)]
    work = builder.mul(builder.mul(requests, heads), builder.mul(rows, builder.mul(size, builder.add(slots, fresh))))

    def head(builder: ir.IRBuilder, index: ir.Value, values: Sequence[ir.Value]) -> None:
        """One kv head of one request."""
        *data, heads, rows, size, fresh, slots, nodes, padded = values
        q, keys, values_, visible, old_keys, old_values, length, *first, out, sums = data
        request, row = builder.udiv(index, heads), builder.mul(size, i64(WORD))
        queries, mixed = (at(builder, base, builder.mul(index, rows), row) for base in (q, out))
        state = at(builder, sums, builder.mul(index, rows), SUMS)
        _begin(builder, mixed, state, rows, size)
        seen = _Rows(queries, mixed, state, rows, size, nodes)
        committed = builder.zext(read(builder, at(builder, length, request, WORD), I32), I64)
        old = [at(builder, base, builder.mul(index, slots), row) for base in (old_keys, old_values)]
        if windowed:
            begin = at(builder, first[0], builder.mul(request, nodes), WORD)
            low = _first_block(builder, begin, nodes)
            _see(builder, "window", seen, old, low, committed, begin, i64(0))
        else:
            _see(builder, "all", seen, old, i64(0), committed, ir.Constant(POINTER, None), i64(0))
        new = [at(builder, base, builder.mul(index, fresh), row) for base in (keys, values_)]
        mask = at(builder, visible, builder.mul(request, nodes), padded)
        _see(builder, "mask", seen, new, i64(0), fresh, mask, padded)
        _end(builder, mixed, state, rows, size)

    values = [*data, heads, rows, size, fresh, slots, nodes, padded]
    share(call, builder.mul(requests, heads), builder.lshr(work, i64(4)), values, head)


class _Rows:
    """Of one kv head: its queries, what they have seen so far, and how many they are, for so many nodes."""

    def __init__(self, queries, mixed, state, rows, size, nodes):
        self.all = [queries, mixed, state, rows, size, nodes]


def _begin(builder: ir.IRBuilder, mixed: ir.Value, state: ir.Value, rows: ir.Value, size: ir.Value) -> None:
    """Rows that have seen nothing yet."""
    with counting(builder, builder.mul(rows, size), step=LANES) as index:
        write(builder, every(0.0), at(builder, mixed, index, WORD))
    with counting(builder, rows) as row:
        here = at(builder, state, row, SUMS)
        write(builder, ir.Constant(F32, NOTHING_SEEN), here)
        write(builder, ir.Constant(F32, 0.0), at(builder, here, WORD))


def _end(builder: ir.IRBuilder, mixed: ir.Value, state: ir.Value, rows: ir.Value, size: ir.Value) -> None:
    """Sums become averages."""
    with counting(builder, rows) as row:
        total = read(builder, at(builder, at(builder, state, row, SUMS), WORD), F32)
        share = builder.fdiv(ir.Constant(F32, 1.0), total)
        _scale(builder, at(builder, mixed, row, builder.mul(size, i64(WORD))), size, everywhere(builder, share))


def _scale(builder: ir.IRBuilder, line: ir.Value, size: ir.Value, factor: ir.Value) -> None:
    with counting(builder, size, step=LANES) as index:
        here = at(builder, line, index, WORD)
        write(builder, builder.fmul(read(builder, here, FLOATS), factor), here)


def _first_block(builder: ir.IRBuilder, first: ir.Value, nodes: ir.Value) -> ir.Value:
    """Where the block begins that has the first slot that any node sees."""
    lowest = room(builder, 8)
    write(builder, i64(2**62), lowest)
    with counting(builder, nodes) as node:
        here = builder.sext(read(builder, at(builder, first, node, WORD), I32), I64)
        inside = builder.select(builder.icmp_signed("<", here, i64(0)), i64(0), here)
        write(builder, smaller(builder, inside, read(builder, lowest, I64)), lowest)
    return builder.and_(read(builder, lowest, I64), i64(-BLOCK))


def _see(
    builder: ir.IRBuilder,
    sight: str,
    rows: _Rows,
    part: list[ir.Value],
    begin: ir.Value,
    end: ir.Value,
    told: ir.Value,
    told_row: ir.Value,
) -> None:
    """Rows see the keys and values `begin` to `end` of a part, block after block.

    Args:
        sight: "all" of them; those that the "mask" `told` names, of rows of `told_row` bytes; or those from the slot on
            that `told` has for each node, in a "window".
    """
    row = builder.mul(rows.all[4], i64(WORD))
    with counting(builder, end, begin, step=BLOCK) as start:
        count = smaller(builder, builder.sub(end, start), i64(BLOCK))
        here = [at(builder, base, start, row) for base in part]
        builder.call(_block(builder.module, sight), [*rows.all, *here, count, start, told, told_row])


def _block(module: ir.Module, sight: str) -> ir.Function:
    """`block(.. rows .., keys, values, count, start, told, told_row)`: `_see` of one block."""
    name = f"see_{sight}"
    if name in module.globals:
        return module.globals[name]
    kinds = [POINTER] * 3 + [I64] * 3 + [POINTER] * 2 + [I64] * 2 + [POINTER, I64]
    function = internal(module, name, kinds)
    q, mixed, state, rows, size, nodes, keys, values, count, start, told, told_row = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    columns, scores = room(builder, BLOCK * WIDEST * WORD), room(builder, MOST_ROWS * LINE)
    groups = builder.lshr(builder.add(count, i64(LANES - 1)), i64(4))
    row = builder.mul(size, i64(WORD))
    _turn(builder, keys, columns, count, groups, size)

    def some(first: ir.Value, number: int) -> None:
        queries, sums = (at(builder, base, first, row) for base in (q, mixed))
        by_key = Strides(x_row=row, y_row=i64(LINE), w_column=i64(VECTOR), w_step=i64(LINE))
        Tiles(module).few_rows(builder, (queries, columns, scores), (number, groups, size), by_key)
        with counting(builder, i64(number)) as index:
            one = builder.add(first, index)
            seen = _Sight(builder, sight, count, start, told, told_row, builder.urem(one, nodes))
            kept = _weigh(builder, at(builder, scores, index, LINE), groups, at(builder, state, one, SUMS), seen)
            _scale(builder, at(builder, mixed, one, row), size, kept)
        by_number = Strides(x_row=i64(LINE), y_row=row, w_column=i64(VECTOR), w_step=row)
        sizes = (number, builder.lshr(size, i64(4)), count)
        Tiles(module, adding=True).few_rows(builder, (scores, values, sums), sizes, by_number)

    by_tiles(builder, rows, MOST_ROWS, some)
    builder.ret_void()
    return function


def _turn(
    builder: ir.IRBuilder, keys: ir.Value, columns: ir.Value, count: ir.Value, groups: ir.Value, size: ir.Value
) -> None:
    """Keys `[count, size]` to `[size, 64]`; what is beyond the last of a group of 16 is like the last."""
    last = builder.sub(count, i64(1))
    with counting(builder, groups) as group:
        slots = [builder.add(builder.mul(group, i64(LANES)), i64(lane)) for lane in range(LANES)]
        lines = [at(builder, keys, smaller(builder, slot, last), builder.mul(size, i64(WORD))) for slot in slots]
        to = at(builder, columns, group, VECTOR)
        with counting(builder, size, step=LANES) as begin:
            block = [read(builder, at(builder, line, begin, WORD), FLOATS) for line in lines]
            for index, column in enumerate(turned(builder, block)):
                write(builder, column, at(builder, to, builder.add(begin, i64(index)), LINE))


class _Sight:
    """Which keys of a block one node sees."""

    def __init__(self, builder, sight, count, start, told, told_row, node):
        self.builder, self.sight, self.count, self.start = builder, sight, count, start
        if sight == "mask":
            self.told = at(builder, at(builder, told, node, told_row), start)
        elif sight == "window":
            self.told = builder.sext(read(builder, at(builder, told, node, WORD), I32), I64)

    def of(self, group: ir.Value) -> ir.Value:
        """Of 16 keys, which."""
        builder = self.builder
        first = builder.mul(group, i64(LANES))
        lanes = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
        slots = builder.add(everywhere(builder, first), lanes)
        seen = builder.icmp_unsigned("<", slots, everywhere(builder, self.count))
        if self.sight == "mask":
            kind = ir.VectorType(I8, LANES)
            named = read(builder, at(builder, self.told, first), kind)
            return builder.and_(seen, builder.icmp_unsigned("!=", named, ir.Constant(kind, None)))
        if self.sight == "window":
            at_slot = builder.add(slots, everywhere(builder, self.start))
            return builder.and_(seen, builder.icmp_signed(">=", at_slot, everywhere(builder, self.told)))
        return seen


def _weigh(builder: ir.IRBuilder, scores: ir.Value, groups: ir.Value, sums: ir.Value, seen: _Sight) -> ir.Value:
    """Scores of one row become weights; returns what the weights so far are to be multiplied with."""
    top, total = room(builder, VECTOR), room(builder, VECTOR)
    before = everywhere(builder, read(builder, sums, F32))
    write(builder, before, top)
    write(builder, every(0.0), total)
    with counting(builder, groups) as group:
        place = at(builder, scores, group, VECTOR)
        score = builder.select(seen.of(group), read(builder, place, FLOATS), every(UNSEEN))
        write(builder, score, place)
        write(builder, larger(builder, read(builder, top, FLOATS), score), top)
    highest = largest(builder, read(builder, top, FLOATS))
    new = everywhere(builder, highest)
    with counting(builder, groups) as group:
        place = at(builder, scores, group, VECTOR)
        weight = exp(builder, builder.fsub(read(builder, place, FLOATS), new))
        write(builder, weight, place)
        write(builder, builder.fadd(read(builder, total, FLOATS), weight), total)
    kept = exp(builder, builder.fsub(before, new))
    old = read(builder, at(builder, sums, WORD), F32)
    of_old = builder.fmul(old, builder.extract_element(kept, ir.Constant(I32, 0)))
    write(builder, builder.fadd(of_old, summed(builder, read(builder, total, FLOATS))), at(builder, sums, WORD))
    write(builder, highest, sums)
    return kept
