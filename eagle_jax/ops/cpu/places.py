"""Where rows, weights and outputs of products lie."""

import dataclasses

from llvmlite import ir

from eagle_jax.ops.cpu.code import NULL, VECTOR, at, i64


@dataclasses.dataclass(frozen=True)
class Strides:
    """Bytes between numbers. Words of a row of x follow each other, columns of y and scales are a vector apart.

    Attributes:
        x_row, y_row, origin_row: between rows.
        w_column: between columns of w.
        w_step: between the steps of one.
    """

    x_row: ir.Value
    y_row: ir.Value
    w_column: ir.Value
    w_step: ir.Value
    origin_row: ir.Value = dataclasses.field(default_factory=lambda: i64(0))


@dataclasses.dataclass(frozen=True)
class Places:
    """Addresses of a row and a column, and of those behind them. The last two are not always given.

    Attributes:
        x, w, y: what is multiplied, and the outputs.
        origin: the number that the row's sums begin with and, behind it, the row's scale; of `Tiles` that are summing
            the sum of the row of x, in 16 lanes.
        scales: those of the outputs.
    """

    x: ir.Value
    w: ir.Value
    y: ir.Value
    origin: ir.Value = NULL
    scales: ir.Value = NULL

    def row(self, builder: ir.IRBuilder, index: ir.Value | int, strides: Strides) -> "Places":
        """Those of a further row."""
        return dataclasses.replace(
            self,
            x=at(builder, self.x, index, strides.x_row),
            y=at(builder, self.y, index, strides.y_row),
            origin=at(builder, self.origin, index, strides.origin_row),
        )

    def column(self, builder: ir.IRBuilder, index: ir.Value | int, strides: Strides) -> "Places":
        """Those of a further column."""
        return dataclasses.replace(
            self,
            w=at(builder, self.w, index, strides.w_column),
            y=at(builder, self.y, index, VECTOR),
            scales=at(builder, self.scales, index, VECTOR),
        )
