"""What products and the halves of a decoder layer are made of: rows that are read, and weights in strips."""

from typing import NamedTuple

from llvmlite import ir

from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I32,
    LANES,
    VECTOR,
    WORD,
    at,
    by_tiles,
    clamped,
    counting,
    every,
    i64,
    read,
    smaller,
    write,
)
from eagle_jax.ops.cpu.norms import Norm
from eagle_jax.ops.cpu.numbers import Pairs, Singles
from eagle_jax.ops.cpu.places import Places, Strides
from eagle_jax.ops.cpu.signatures import Buffer
from eagle_jax.ops.cpu.threads import Phase
from eagle_jax.ops.cpu.tiles import Tiles

TOGETHER = 2  # rows that are made ready in a task


class Input(NamedTuple):
    """Float rows, and what becomes of them: normed if there is a scale, and in the numbers that are multiplied.

    Attributes:
        x, scale, eps, ready: addresses.
        normed: numbers of the scale; without any the rows are taken as they are.
        count, size: of the rows.
    """

    x: ir.Value
    scale: ir.Value
    eps: ir.Value
    ready: ir.Value
    normed: ir.Value
    count: ir.Value
    size: ir.Value

    def phase(self, builder: ir.IRBuilder, numbers: Singles | Pairs) -> Phase:
        """The work, of tasks that know it as `given`."""
        blocks = builder.udiv(builder.add(self.count, i64(TOGETHER - 1)), i64(TOGETHER))
        return Phase(blocks, lambda builder, index, known: known.given._make_ready(builder, index, numbers))

    def _make_ready(self, builder: ir.IRBuilder, block: ir.Value, numbers: Singles | Pairs) -> None:
        """`TOGETHER` rows."""
        begin = builder.mul(block, i64(TOGETHER))
        with counting(builder, smaller(builder, self.count, builder.add(begin, i64(TOGETHER))), begin) as row:
            first = builder.mul(row, self.size)
            line, to = at(builder, self.x, first, WORD), at(builder, self.ready, first, numbers.size)

            def put(index: ir.Value, floats: ir.Value) -> None:
                write(builder, numbers.of(builder, floats), at(builder, to, index, numbers.size))

            with builder.if_else(builder.icmp_unsigned("!=", self.normed, i64(0))) as (then, otherwise):
                with then:
                    Norm(self.scale, read(builder, self.eps, F32), self.size).build(builder, line, put)
                with otherwise, counting(builder, self.size, step=LANES) as index:
                    put(index, read(builder, at(builder, line, index, WORD), FLOATS))


class Weight(NamedTuple):
    """A weight in strips.

    Attributes:
        data: its address.
        strips: how many.
        steps: words of a row of x.
        columns: vectors of outputs of a strip.
    """

    data: ir.Value
    strips: ir.Value
    steps: ir.Value
    columns: ir.Value

    @staticmethod
    def of(builder: ir.IRBuilder, buffer: Buffer, numbers: Singles | Pairs) -> "Weight":
        """That of an argument `[s, in, w]` or `[s, in / 2, 2 w]`."""
        line = builder.mul(buffer.size(2), i64(numbers.size))
        return Weight(buffer.data, buffer.size(0), buffer.size(1), builder.udiv(line, i64(VECTOR)))

    def width(self, builder: ir.IRBuilder) -> ir.Value:
        """Bytes of a row of outputs of a strip."""
        return builder.mul(self.columns, i64(VECTOR))

    def vectors(self, builder: ir.IRBuilder) -> ir.Value:
        """Vectors of the whole weight."""
        return builder.mul(builder.mul(self.strips, self.steps), self.columns)

    def times(
        self,
        builder: ir.IRBuilder,
        tiles: Tiles,
        rows: tuple[ir.Value, int],
        strip: ir.Value,
        y: tuple[ir.Value, ir.Value],
    ) -> None:
        """Products of a few rows with one strip.

        Args:
            rows: the address of the first, and how many.
            y: where their first outputs go, and the bytes from row to row.
        """
        x, count = rows
        w_step = self.width(builder)
        strides = Strides(builder.mul(self.steps, i64(WORD)), y[1], i64(VECTOR), w_step)
        here = at(builder, self.data, strip, builder.mul(self.steps, w_step))
        tiles.few_rows(builder, Places(x, here, y[0]), (count, self.columns, self.steps), strides)


def multiply(
    builder: ir.IRBuilder,
    strip: ir.Value,
    weight: Weight,
    tiles: Tiles,
    x: ir.Value,
    y: ir.Value,
    sizes: tuple[ir.Value, ir.Value, ir.Value],
    residual: ir.Value | None = None,
) -> None:
    """A task: all rows times one strip.

    Args:
        x, y: addresses of rows and outputs.
        sizes: rows that are wanted, rows, and outputs of each.
        residual: the address of what is added to the outputs.
    """
    count, rows, outputs = sizes
    y_row = builder.mul(outputs, i64(WORD))

    def few(first: ir.Value, number: int) -> None:
        offset = builder.add(builder.mul(first, y_row), builder.mul(strip, weight.width(builder)))
        to = at(builder, y, offset)
        line = at(builder, x, first, builder.mul(weight.steps, i64(WORD)))
        weight.times(builder, tiles, (line, number), strip, (to, y_row))
        if residual is not None:
            with counting(builder, i64(number)) as row, counting(builder, weight.columns) as column:
                further = builder.add(builder.mul(row, y_row), builder.mul(column, i64(VECTOR)))
                place, other = at(builder, to, further), at(builder, residual, builder.add(offset, further))
                write(builder, builder.fadd(read(builder, other, FLOATS), read(builder, place, FLOATS)), place)

    by_tiles(builder, count, tiles.most_rows, few)
    begin = builder.mul(strip, weight.width(builder))
    with counting(builder, rows, count) as row:
        clear(builder, at(builder, y, row, y_row), begin, builder.add(begin, weight.width(builder)))


def clear(builder: ir.IRBuilder, base: ir.Value, begin: ir.Value, end: ir.Value) -> None:
    """Writes zeros from one byte behind an address to another, some vectors further."""
    with counting(builder, end, begin, step=VECTOR) as offset:
        write(builder, every(0.0), at(builder, base, offset))


def valid_rows(builder: ir.IRBuilder, num_valid: Buffer, rows: ir.Value) -> ir.Value:
    """How many of the rows are not padding: an argument `int32[]`."""
    return clamped(builder, read(builder, num_valid.data, I32), rows)
