"""Register tiles: the sums of products that matrix products and attention consist of.

    y[row, column, 0..15]  =  sum over steps of  x[row, step] * w[column, step, 0..15]

Every output is accumulated in the order of the steps, regardless of what else a tile computes, so the result of a row
does not depend on other rows.
"""

import contextlib
import dataclasses

from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.arithmetic import Arithmetic
from eagle_jax.ops.cpu.code import (
    FLOATS,
    I32,
    I64,
    INTEGERS,
    POINTER,
    WORD,
    at,
    compiler_barrier,
    features,
    field_values,
    for_range,
    i64,
    internal_function,
    minimum,
    prefetch,
    read,
    write,
)

MAX_ROWS = 6  # of x in a tile: with 4 columns their sums fit into the registers of AVX-512, with 1 into those of AVX2
MAX_COLUMNS = 4
# The sums of 7 rows leave 4 registers: for the weights of 2 columns, then of the other 2. A forward pass over 7 rows
# takes 3 % less time than with half the columns at a time. Weights that are unpacked first need registers for that too.
REGISTERS, MAX_ROWS_DIRECT = 32, 7
# With half the columns AVX-512 has registers for 12 rows, so that weights are read once, not twice: a forward pass over
# 9 rows takes a tenth less time. More would cost compile time, since each number of rows is a function.
MAX_ROWS_STREAMED = 9
COLUMNS_BESIDE_SUMS = 2
# With many rows to multiply, out-of-order execution reaches too few weights ahead to keep memory busy. From 4 rows on
# the code prefetches 16 KB ahead, a third of an L1 cache of 48 KB; there, prefetching into L2 alone costs 6 rows a
# tenth more, and 3 rows became slower with either. With an L1 cache of 32 KB (Zen 4) L2 is better: 8 rows take
# a tenth less.
PREFETCH_FROM_ROWS, PREFETCH_BYTES = 4, 16384


class Tiles:
    """Functions that compute `y` for a few rows, added to a module when they are first called.

    Args:
        arithmetic: arithmetic of x and w.
        streamed: w is read once, so it is prefetched. Not for quantized weights: their arithmetic takes longer, and
            some of these products became slower.
        row_sums: also adds the sum of each row of x (floats) to the number in 16 lanes at its origin.
    """

    def __init__(self, module: ir.Module, arithmetic: Arithmetic, streamed: bool = False, row_sums: bool = False):
        self._module, self._arithmetic, self._streamed, self._row_sums = module, arithmetic, streamed, row_sums

    @property
    def max_rows(self) -> int:
        """Most rows of x in a tile: more with more registers, and more yet where weights are read once."""
        return MAX_ROWS_STREAMED if self._streamed and "avx512f" in features() else self._max_rows_all_columns

    @property
    def _max_rows_all_columns(self) -> int:
        """Most rows whose sums with `MAX_COLUMNS` columns (fewer without AVX-512) fit into the registers."""
        return MAX_ROWS_DIRECT if self._arithmetic.direct and "avx512f" in features() else MAX_ROWS

    def prepared(self, builder: ir.IRBuilder, rows: int, group: ir.Value) -> contextlib.AbstractContextManager[None]:
        """Around all `multiply_rows` of a few rows with one weight, whose groups have `group` inputs."""
        return contextlib.nullcontext()

    def multiply_rows(
        self, builder: ir.IRBuilder, addresses: Addresses, sizes: tuple[int, ir.Value, ir.Value], strides: Strides
    ) -> None:
        """Computes `y` of at most `max_rows` rows.

        Args:
            sizes: numbers of rows, columns and steps.
        """
        rows, columns, steps = sizes
        builder.call(self._function(rows), [*field_values(addresses), columns, steps, *field_values(strides)])

    def _function(self, rows: int) -> ir.Function:
        prefetch = self._streamed and rows >= PREFETCH_FROM_ROWS
        options = [name for name, is_on in (("prefetch", prefetch), ("row_sums", self._row_sums)) if is_on]
        name = "_".join([f"tile_of_{rows}", self._arithmetic.name, *options])
        if name in self._module.globals:
            return self._module.globals[name]
        pointers, bytes_ = (len(dataclasses.fields(kind)) for kind in (Addresses, Strides))
        function = internal_function(self._module, name, [POINTER] * pointers + [I64] * (2 + bytes_))
        addresses, strides = Addresses(*function.args[:pointers]), Strides(*function.args[-bytes_:])
        columns, steps = function.args[pointers:-bytes_]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        tile = _Tile(builder, rows, strides, self._arithmetic, PREFETCH_BYTES if prefetch else 0)
        columns_at_once = self._columns_at_once(rows)
        first_column = _add_row_sums(builder, tile, addresses, columns, steps) if self._row_sums else i64(0)
        while columns_at_once:
            end = builder.sub(columns, builder.urem(builder.sub(columns, first_column), i64(columns_at_once)))
            with for_range(builder, end, first_column, step=columns_at_once) as first:
                tile.build(addresses.column(builder, first, strides), steps, columns_at_once)
            first_column, columns_at_once = end, columns_at_once // 2
        builder.ret_void()
        return function

    def _columns_at_once(self, rows: int) -> int:
        """Returns the number of columns in a tile of this number of rows."""
        if "avx512f" in features():
            return MAX_COLUMNS if rows <= self._max_rows_all_columns else MAX_COLUMNS // 2
        return max(1, MAX_COLUMNS // rows)


def _add_row_sums(
    builder: ir.IRBuilder, tile: "_Tile", addresses: Addresses, columns: ir.Value, steps: ir.Value
) -> ir.Value:
    """Adds the row sums of x, together with the products of the first columns where registers suffice for both.

    Returns:
        The number of columns that it computed.
    """
    if "avx512f" not in features():
        tile.build(addresses, steps, 0, row_sums=True)
        return i64(0)
    with builder.if_else(builder.icmp_unsigned("<", columns, i64(COLUMNS_BESIDE_SUMS))) as (one, several):
        with one:
            tile.build(addresses, steps, 1, row_sums=True)
        with several:
            tile.build(addresses, steps, COLUMNS_BESIDE_SUMS, row_sums=True)
    return minimum(builder, columns, i64(COLUMNS_BESIDE_SUMS))


def _columns_in_registers(rows: int, columns: int) -> int:
    """Returns how many columns' weights fit into registers together with the sums of all columns; at least 1."""
    return max(columns if rows * columns + columns < REGISTERS else columns // 2, 1)


class _Tile:
    """A tile of `rows` rows and a few columns, with all sums in registers.

    Args:
        prefetch_bytes: distance from the weights that are multiplied to those that are prefetched; 0 prefetches none.
    """

    def __init__(self, builder: ir.IRBuilder, rows: int, strides: Strides, arithmetic: Arithmetic, prefetch_bytes: int):
        self.builder, self.rows, self.strides, self.arithmetic, self.prefetch_bytes = (
            builder,
            rows,
            strides,
            arithmetic,
            prefetch_bytes,
        )
        self.accumulators = [
            [builder.alloca(arithmetic.accumulator_type) for _ in range(MAX_COLUMNS)] for _ in range(rows)
        ]
        self.row_sum_accumulators = [builder.alloca(FLOATS) for _ in range(rows)]

    def build(self, addresses: Addresses, steps: ir.Value, columns: int, row_sums: bool = False) -> None:
        """Computes y of some columns, or of none, and the row sums of x if asked."""
        builder, arithmetic = self.builder, self.arithmetic
        lines = [addresses.row(builder, row, self.strides) for row in range(self.rows)]
        weights = [addresses.column(builder, column, self.strides).w for column in range(columns)]
        outputs = [
            (self.accumulators[row][column], line.column(builder, column, self.strides))
            for row, line in enumerate(lines)
            for column in range(columns)
        ]
        row_sum_accumulators = list(zip(self.row_sum_accumulators, lines, strict=True)) if row_sums else []
        for accumulator, output in outputs:
            builder.store(arithmetic.initial(builder, output), accumulator)
        for accumulator, line in row_sum_accumulators:
            builder.store(read(builder, line.origin, FLOATS), accumulator)
        with for_range(builder, steps) as step:
            offset = builder.mul(step, self.strides.w_step)
            vectors = [at(builder, weight, offset) for weight in weights]
            for vector in vectors if self.prefetch_bytes else []:
                prefetch(builder, at(builder, vector, self.prefetch_bytes))
            columns_per_pass = _columns_in_registers(self.rows, columns)
            for begin in range(0, columns, columns_per_pass):
                if columns_per_pass < columns:  # else LLVM keeps x in registers for all columns, and spills them
                    compiler_barrier(builder)
                columns_ = slice(begin, begin + columns_per_pass)
                self._add(step, lines, vectors[columns_], [of_row[columns_] for of_row in self.accumulators])
            for accumulator, line in row_sum_accumulators:
                (x,) = arithmetic.broadcast(builder, read(builder, at(builder, line.x, step, WORD), I32))
                builder.store(builder.fadd(builder.load(accumulator, typ=FLOATS), x), accumulator)
        for accumulator, output in outputs:
            arithmetic.store(builder, builder.load(accumulator, typ=arithmetic.accumulator_type), output)
        for accumulator, line in row_sum_accumulators:
            write(builder, builder.load(accumulator, typ=FLOATS), line.origin)

    def _add(
        self, step: ir.Value, lines: list[Addresses], vectors: list[ir.Value], accumulators: list[list[ir.Value]]
    ) -> None:
        """Accumulates the products of one step of all rows with some columns."""
        builder, arithmetic = self.builder, self.arithmetic
        for first in range(0, arithmetic.words, arithmetic.joined):
            if first and arithmetic.rereads:
                compiler_barrier(builder)
            weights = [read(builder, vector, INTEGERS) for vector in vectors]
            words = range(first, first + arithmetic.joined)
            parts = [[f for word in words for f in arithmetic.weight_factors(builder, w, word)] for w in weights]
            for line, of_row in zip(lines, accumulators, strict=True):
                start = at(builder, line.x, step, WORD * arithmetic.words)
                x_words = [read(builder, at(builder, start, word, WORD), I32) for word in words]
                x = [factor for word in x_words for factor in arithmetic.broadcast(builder, word)]
                for weight_factors, accumulator in zip(parts, of_row, strict=True):
                    total = builder.load(accumulator, typ=arithmetic.accumulator_type)
                    builder.store(arithmetic.accumulate(builder, total, x, weight_factors), accumulator)
