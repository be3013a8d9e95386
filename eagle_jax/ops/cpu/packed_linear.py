"""Input rows and packed weights of products, as `float_products`, `attention_block` and `mlp_block` use them."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.amx import AmxTiles
from eagle_jax.ops.cpu.arithmetic import FLOATING, BFloat16Arithmetic, FloatArithmetic
from eagle_jax.ops.cpu.calls import add_handler
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I32,
    LANES,
    VECTOR,
    WORD,
    at,
    clamp,
    constant,
    for_range,
    for_tiles,
    has_amx,
    i64,
    minimum,
    read,
    write,
)
from eagle_jax.ops.cpu.norms import Norm
from eagle_jax.ops.cpu.signatures import Buffer, Signature
from eagle_jax.ops.cpu.threads import Phase
from eagle_jax.ops.cpu.tiles import Tiles

ROWS_PER_TASK = 2  # that are prepared

AnyTiles = Tiles | AmxTiles


def tiles_for(module: ir.Module, arithmetic: FloatArithmetic) -> AnyTiles:
    """Returns the tiles that multiply rows with packed weights, which are read once."""
    if isinstance(arithmetic, BFloat16Arithmetic) and has_amx():
        return AmxTiles(module)
    return Tiles(module, arithmetic, streamed=True)


class InputRows(NamedTuple):
    """Rows of float32, normed if there is a scale, and converted to the dtype of the weights.

    Attributes:
        x, scale, eps, prepared: addresses.
        scale_size: length of the scale; 0 leaves out the norm.
        count, size: number and length of the rows.
    """

    x: ir.Value
    scale: ir.Value
    eps: ir.Value
    prepared: ir.Value
    scale_size: ir.Value
    count: ir.Value
    size: ir.Value

    def phase(self, builder: ir.IRBuilder, arithmetic: FloatArithmetic) -> Phase:
        """Returns the phase that prepares the rows; they are `input_rows` of the tasks' context."""
        blocks = builder.udiv(builder.add(self.count, i64(ROWS_PER_TASK - 1)), i64(ROWS_PER_TASK))
        return Phase(blocks, lambda builder, index, context: context.input_rows._prepare(builder, index, arithmetic))

    def _prepare(self, builder: ir.IRBuilder, block: ir.Value, arithmetic: FloatArithmetic) -> None:
        """Builds a task that prepares `ROWS_PER_TASK` rows."""
        begin = builder.mul(block, i64(ROWS_PER_TASK))
        with for_range(builder, minimum(builder, self.count, builder.add(begin, i64(ROWS_PER_TASK))), begin) as row:
            first = builder.mul(row, self.size)
            row_address, destination = (
                at(builder, self.x, first, WORD),
                at(builder, self.prepared, first, arithmetic.size),
            )

            def store(index: ir.Value, floats: ir.Value) -> None:
                write(builder, arithmetic.convert(builder, floats), at(builder, destination, index, arithmetic.size))

            with builder.if_else(builder.icmp_unsigned("!=", self.scale_size, i64(0))) as (then, otherwise):
                with then:
                    Norm(self.scale, read(builder, self.eps, F32), self.size).build(builder, row_address, store)
                with otherwise, for_range(builder, self.size, step=LANES) as index:
                    store(index, read(builder, at(builder, row_address, index, WORD), FLOATS))


class Weight(NamedTuple):
    """A packed weight.

    Attributes:
        data: its address.
        panels: their number.
        steps: words of a row of x.
        columns: vectors of outputs of a panel.
    """

    data: ir.Value
    panels: ir.Value
    steps: ir.Value
    columns: ir.Value

    @staticmethod
    def from_buffer(builder: ir.IRBuilder, buffer: Buffer, arithmetic: FloatArithmetic) -> "Weight":
        """Returns the weight in an argument `[s, in, w]` or `[s, in / 2, 2 w]`."""
        row_address = builder.mul(buffer.size(2), i64(arithmetic.size))
        return Weight(buffer.data, buffer.size(0), buffer.size(1), builder.udiv(row_address, i64(VECTOR)))

    def width(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns the size in bytes of one row's outputs of a panel."""
        return builder.mul(self.columns, i64(VECTOR))

    def vectors(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns the number of vectors of the whole weight."""
        return builder.mul(builder.mul(self.panels, self.steps), self.columns)

    def multiply_rows(
        self,
        builder: ir.IRBuilder,
        tiles: AnyTiles,
        rows: tuple[ir.Value, int],
        panel: ir.Value,
        y: tuple[ir.Value, ir.Value],
    ) -> None:
        """Products of a few rows with one panel.

        Args:
            rows: address of the first row, and their number.
            y: address of the first output, and the bytes from row to row.
        """
        x, count = rows
        panel_width = self.width(builder)
        strides = Strides(builder.mul(self.steps, i64(WORD)), y[1], i64(VECTOR), panel_width)
        panel_address = at(builder, self.data, panel, builder.mul(self.steps, panel_width))
        tiles.multiply_rows(builder, Addresses(x, panel_address, y[0]), (count, self.columns, self.steps), strides)


def multiply_panel(
    builder: ir.IRBuilder,
    panel: ir.Value,
    weight: Weight,
    tiles: AnyTiles,
    x: ir.Value,
    y: ir.Value,
    sizes: tuple[ir.Value, ir.Value, ir.Value],
    residual: ir.Value | None = None,
) -> None:
    """Builds a task: all rows times one panel; zeros for rows of padding.

    Args:
        x, y: addresses of rows and outputs.
        sizes: numbers of valid rows, of rows, and of outputs of each.
        residual: address of what is added to the outputs, or None.
    """
    count, rows, outputs = sizes
    y_row = builder.mul(outputs, i64(WORD))

    def tile(first: ir.Value, number: int) -> None:
        offset = builder.add(builder.mul(first, y_row), builder.mul(panel, weight.width(builder)))
        destination = at(builder, y, offset)
        row_address = at(builder, x, first, builder.mul(weight.steps, i64(WORD)))
        weight.multiply_rows(builder, tiles, (row_address, number), panel, (destination, y_row))
        if residual is not None:
            with for_range(builder, i64(number)) as row, for_range(builder, weight.columns) as column:
                column_offset = builder.add(builder.mul(row, y_row), builder.mul(column, i64(VECTOR)))
                address, residual_address = (
                    at(builder, destination, column_offset),
                    at(builder, residual, builder.add(offset, column_offset)),
                )
                write(
                    builder,
                    builder.fadd(read(builder, residual_address, FLOATS), read(builder, address, FLOATS)),
                    address,
                )

    for_tiles(builder, count, tiles.max_rows, tile)
    begin = builder.mul(panel, weight.width(builder))
    with for_range(builder, rows, count) as row:
        clear(builder, at(builder, y, row, y_row), begin, builder.add(begin, weight.width(builder)))


def add_float_handlers(
    module: ir.Module,
    names: Mapping[np.dtype, str],
    signature: Callable[[str, int], Signature],
    body: Callable[..., None],
) -> None:
    """Adds a handler for each dtype of float weights.

    Args:
        names: names of the handlers, by dtype.
        signature: `signature(dtype, inputs)` for weights with so many inputs in a word.
        body: `body(call, arithmetic=...)` builds the work.
    """
    for dtype, name in names.items():
        arithmetic = FLOATING[dtype]
        build = functools.partial(body, arithmetic=arithmetic)
        add_handler(module, name, signature(dtype.name, arithmetic.inputs), build)


def clear(builder: ir.IRBuilder, base: ir.Value, begin: ir.Value, end: ir.Value) -> None:
    """Writes zeros to the bytes `begin` to `end` after an address, a multiple of a vector."""
    with for_range(builder, end, begin, step=VECTOR) as offset:
        write(builder, constant(0.0), at(builder, base, offset))


def valid_rows(builder: ir.IRBuilder, num_valid: Buffer, rows: ir.Value) -> ir.Value:
    """Returns the number of rows that are not padding, from an argument `int32[]`."""
    return clamp(builder, read(builder, num_valid.data, I32), rows)
