"""Addresses and strides of the operands of a product."""

import dataclasses

from llvmlite import ir

from eagle_jax.ops.cpu.code import NULL, VECTOR, at, i64


@dataclasses.dataclass(frozen=True)
class Strides:
    """Strides in bytes. Words of a row of x are contiguous, columns of y are one vector apart.

    Attributes:
        x_row, y_row, origin_row: from row to row.
        w_column: from column to column of w.
        w_step: from step to step within a column.
        scales_column: from column to column of scales.
    """

    x_row: ir.Value
    y_row: ir.Value
    w_column: ir.Value
    w_step: ir.Value
    origin_row: ir.Value = dataclasses.field(default_factory=lambda: i64(0))
    scales_column: ir.Value = dataclasses.field(default_factory=lambda: i64(0))


@dataclasses.dataclass(frozen=True)
class Addresses:
    """Addresses of the first row and column.

    Attributes:
        x, w, y: operands and output.
        origin: sum of the row's codes, followed by the row's scale (quantized weights); or the row sum of x,
            in 16 lanes (`Tiles(row_sums=True)`); or null.
        scales: scales of the outputs (quantized weights); or null.
    """

    x: ir.Value
    w: ir.Value
    y: ir.Value
    origin: ir.Value = NULL
    scales: ir.Value = NULL

    def row(self, builder: ir.IRBuilder, index: ir.Value | int, strides: Strides) -> "Addresses":
        """Returns the addresses for row `index`."""
        return dataclasses.replace(
            self,
            x=at(builder, self.x, index, strides.x_row),
            y=at(builder, self.y, index, strides.y_row),
            origin=at(builder, self.origin, index, strides.origin_row),
        )

    def column(self, builder: ir.IRBuilder, index: ir.Value | int, strides: Strides) -> "Addresses":
        """Returns the addresses for column `index`."""
        return dataclasses.replace(
            self,
            w=at(builder, self.w, index, strides.w_column),
            y=at(builder, self.y, index, VECTOR),
            scales=at(builder, self.scales, index, strides.scales_column),
        )
