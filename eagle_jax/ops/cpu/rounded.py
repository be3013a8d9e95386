"""Products of rows with a rounded weight that lies in strips (`models.strips`), added up as whole numbers.

Inputs come in blocks of at most 128, whose products add up within 32 bits. Each row is rounded, a block to integers of
16 or 8 bits, its largest number to 32767 or 127. Levels have no sign here: 128 or 8 is none. A block is

    y[row, output]  +=  scale of the output  *  scale of the row  *  (sum of x * level  -  none * sum of x)
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32
from llvmlite import ir

from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I32,
    INTEGERS,
    LANES,
    VECTOR,
    WORD,
    at,
    by_tiles,
    counting,
    declared,
    every,
    everywhere,
    i64,
    read,
    room,
    smaller,
    write,
)
from eagle_jax.ops.cpu.math import fma, larger, largest, summed, summed_up
from eagle_jax.ops.cpu.numbers import Levels, by_bytes
from eagle_jax.ops.cpu.parts import clear, valid_rows
from eagle_jax.ops.cpu.places import Places, Strides
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share
from eagle_jax.ops.cpu.tiles import Tiles

MOST_INPUTS = 128  # of a block: 128 * 32767 * (255 + 128), products and what sums begin with, is 1.6e9, below 2**31
LEAST = float(np.float32(1e-34))  # of a block's scale; with less its numbers are zeros
ORIGIN = 2 * WORD  # bytes of what a row's block has beside its integers


def product(
    rows: Float[Array, "r i"],
    words: UInt32[Array, "s _ w"],
    scales: Float[Array, "s g w"],
    bits: int,
    row_bits: int,
    num_valid: Int[Array, ""],
) -> Float[Array, "r o"]:
    """`rows @ weight.T` in float32.

    Args:
        words: `[out / w, in bits / 32, w]`: levels, as `numbers.Levels` has them; w is a multiple of 16.
        scales: of each group of inputs, a multiple of 16.
        bits: of levels, 8 or 4.
        row_bits: what rows are rounded to, 16, or 8 where `numbers.by_bytes`.
        num_valid: leading rows that are not padding; the others become zeros.
    """
    count, inputs = rows.shape
    groups = scales.shape[1]
    blocks = groups * -(-inputs // groups // MOST_INPUTS)  # of which `_blocks` has as many
    levels = Levels(bits, row_bits)
    y = jax.ShapeDtypeStruct((count, words.shape[0] * words.shape[2]), jnp.float32)
    x = jax.ShapeDtypeStruct((count, inputs), f"int{levels.x_bits}")
    origins = jax.ShapeDtypeStruct((count, blocks, 2), jnp.int32)
    return jax.ffi.ffi_call(_name(levels), [y, x, origins])(rows, words, scales, num_valid)[0]


def names() -> list[str]:
    """Of the handlers."""
    return [_name(levels) for levels in _all_levels()]


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for levels in _all_levels():
        add_handler(module, _name(levels), _signature(levels), functools.partial(_body, levels=levels))


def _signature(levels: Levels) -> Signature:
    """g groups of inputs; k blocks; s strips of w outputs."""
    return Signature(
        arguments={
            "rows": "float32[r, i]",
            "words": "uint32[s, j, w]",
            "scales": "float32[s, g, w]",
            "num_valid": "int32[]",
        },
        results={"y": "float32[r, o]", "whole": f"int{levels.x_bits}[r, i]", "origins": "int32[r, k, 2]"},
        relations=[
            "g >= 1",
            "i >= 1",
            f"i % ({LANES} * g) == 0",
            f"i == {levels.inputs} * j",
            f"w % {LANES} == 0",
            "o == s * w",
            f"k == g * ((i // g + {MOST_INPUTS - 1}) // {MOST_INPUTS})",
        ],
    )


def _all_levels() -> list[Levels]:
    return [Levels(bits, x_bits) for bits in (8, 4) for x_bits in ((16, 8) if by_bytes() else (16,))]


def _name(levels: Levels) -> str:
    return f"eagle_jax_product_{levels.name}"


class _Buffers(NamedTuple):
    """Addresses: rounded rows, and what else there is of theirs; words and scales of the weight; outputs."""

    whole: ir.Value
    origins: ir.Value
    words: ir.Value
    scales: ir.Value
    y: ir.Value


class _Block(NamedTuple):
    """Which it is, in which group, and its inputs."""

    index: ir.Value
    group: ir.Value
    start: ir.Value
    size: ir.Value


class _Sizes(NamedTuple):
    """Numbers, not bytes.

    Attributes:
        group: inputs of one.
        blocks: of all inputs.
        width: outputs of a strip.
        outputs: of all strips.
        valid: rows that are not padding.
    """

    rows: ir.Value
    valid: ir.Value
    inputs: ir.Value
    group: ir.Value
    blocks: ir.Value
    width: ir.Value
    outputs: ir.Value


def _body(call: Call, levels: Levels) -> None:
    builder, (x, weight, scales, num_valid), (y, whole, origins) = call.builder, call.arguments, call.results
    rows, inputs, width = x.size(0), x.size(1), weight.size(2)
    buffers = _Buffers(whole.data, origins.data, weight.data, scales.data, y.data)
    valid = valid_rows(builder, num_valid, rows)
    sizes = _Sizes(rows, valid, inputs, builder.udiv(inputs, scales.size(1)), origins.size(1), width, y.size(1))
    _round(builder, x.data, buffers, sizes, levels)
    vectors = builder.mul(weight.size(0), builder.udiv(width, i64(LANES)))
    work = builder.mul(builder.mul(valid, weight.size(1)), vectors)
    strip = functools.partial(_strip, tiles=Tiles(call.module, levels), levels=levels)
    share(call, [Phase(weight.size(0), strip)], work, [*buffers, *sizes])


def _strip(builder: ir.IRBuilder, index: ir.Value, values: Sequence[ir.Value], tiles: Tiles, levels: Levels) -> None:
    """All rows times one strip."""
    given = len(_Buffers._fields)
    buffers, sizes = _Buffers(*values[:given]), _Sizes(*values[given:])
    line, in_word, x_size = builder.mul(sizes.width, i64(WORD)), i64(levels.inputs), levels.x_bits // 8
    columns, groups = builder.udiv(sizes.width, i64(LANES)), builder.udiv(sizes.inputs, sizes.group)
    strides = Strides(
        x_row=builder.mul(sizes.inputs, i64(x_size)),
        y_row=builder.mul(sizes.outputs, i64(WORD)),
        w_column=i64(VECTOR),
        w_step=line,
        origin_row=builder.mul(sizes.blocks, i64(ORIGIN)),
    )
    all_rows = Places(
        x=buffers.whole,
        w=at(builder, buffers.words, index, builder.mul(builder.udiv(sizes.inputs, in_word), line)),
        y=at(builder, buffers.y, index, line),
        origin=buffers.origins,
        scales=at(builder, buffers.scales, index, builder.mul(groups, line)),
    )

    def some(first: ir.Value, count: int) -> None:
        places = all_rows.row(builder, first, strides)
        with counting(builder, i64(count)) as row, counting(builder, columns) as column:
            write(builder, every(0.0), at(builder, at(builder, places.y, row, strides.y_row), column, VECTOR))
        with _blocks(builder, sizes) as block:
            here = dataclasses.replace(
                places,
                x=at(builder, places.x, block.start, x_size),
                w=at(builder, places.w, builder.udiv(block.start, in_word), line),
                origin=at(builder, places.origin, block.index, ORIGIN),
                scales=at(builder, places.scales, block.group, line),
            )
            tiles.few_rows(builder, here, (count, columns, builder.udiv(block.size, in_word)), strides)

    by_tiles(builder, sizes.valid, tiles.most_rows, some)
    with counting(builder, sizes.rows, sizes.valid) as row:
        clear(builder, at(builder, all_rows.y, row, strides.y_row), i64(0), line)


@contextlib.contextmanager
def _blocks(builder: ir.IRBuilder, sizes: _Sizes) -> Iterator[_Block]:
    """Around what is built for each block."""
    groups = builder.udiv(sizes.inputs, sizes.group)
    each = builder.udiv(sizes.blocks, groups)
    with counting(builder, groups) as group, counting(builder, sizes.group, step=MOST_INPUTS) as start:
        index = builder.add(builder.mul(group, each), builder.udiv(start, i64(MOST_INPUTS)))
        size = smaller(builder, builder.sub(sizes.group, start), i64(MOST_INPUTS))
        yield _Block(index, group, builder.add(builder.mul(group, sizes.group), start), size)


def _round(builder: ir.IRBuilder, x: ir.Value, buffers: _Buffers, sizes: _Sizes, levels: Levels) -> None:
    """Rounds all rows: integers, and for each block what sums begin with and its scale."""
    x_size, none = levels.x_bits // 8, ir.Constant(I32, -(2 ** (levels.bits - 1)))
    with counting(builder, sizes.valid) as row, _blocks(builder, sizes) as block:
        first = builder.add(builder.mul(row, sizes.inputs), block.start)
        line, to = at(builder, x, first, WORD), at(builder, buffers.whole, first, x_size)
        origin = at(builder, buffers.origins, builder.add(builder.mul(row, sizes.blocks), block.index), ORIGIN)
        scale, steps = _scale(builder, line, block.size, 2 ** (levels.x_bits - 1) - 1)
        total = _rounded(builder, line, to, block.size, everywhere(builder, steps), levels)
        write(builder, builder.mul(total, none), origin)
        write(builder, scale, at(builder, origin, WORD))


def _scale(builder: ir.IRBuilder, line: ir.Value, size: ir.Value, highest: int) -> tuple[ir.Value, ir.Value]:
    """A block's scale, and its inverse, or 0 where that is none. With a number that is not finite the scale is none."""
    top, faults = room(builder, VECTOR), room(builder, VECTOR)
    for place in (top, faults):
        write(builder, every(0.0), place)
    absolute = declared(builder.module, f"llvm.fabs.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    with counting(builder, size, step=LANES) as index:
        number = read(builder, at(builder, line, index, WORD), FLOATS)
        write(builder, larger(builder, builder.call(absolute, [number]), read(builder, top, FLOATS)), top)
        write(builder, fma(builder, number, every(0.0), read(builder, faults, FLOATS)), faults)
    largest_ = largest(builder, read(builder, top, FLOATS))
    fault = summed(builder, read(builder, faults, FLOATS))
    zero, least, most = (ir.Constant(F32, number) for number in (0.0, LEAST, float(highest)))
    scale = builder.fadd(builder.fdiv(largest_, most), fault)
    steps = builder.select(builder.fcmp_ordered(">", scale, least), builder.fdiv(most, largest_), zero)
    return scale, steps


def _rounded(
    builder: ir.IRBuilder, line: ir.Value, to: ir.Value, size: ir.Value, steps: ir.Value, levels: Levels
) -> ir.Value:
    """Rounds the numbers of a block, ties to even; returns the sum of the integers."""
    total = room(builder, VECTOR)
    write(builder, ir.Constant(INTEGERS, None), total)
    nearest = declared(builder.module, f"llvm.rint.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    narrow = ir.VectorType(ir.IntType(levels.x_bits), LANES)
    lanes = [word * levels.inputs + input_ for word in range(LANES // levels.inputs) for input_ in levels.order]
    with counting(builder, size, step=LANES) as index:
        number = builder.fmul(read(builder, at(builder, line, index, WORD), FLOATS), steps)
        whole = builder.fptosi(builder.call(nearest, [number]), INTEGERS)
        short = builder.trunc(whole, narrow)
        short = builder.shuffle_vector(short, ir.Constant(narrow, ir.Undefined), ir.Constant(INTEGERS, lanes))
        write(builder, short, at(builder, to, index, levels.x_bits // 8))
        write(builder, builder.add(read(builder, total, INTEGERS), whole), total)
    return summed_up(builder, read(builder, total, INTEGERS))
