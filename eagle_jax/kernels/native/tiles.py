"""Sums of products in registers, which products with weights and attention are made of.

    y[row, column, 0..15]  =  sum over steps of  x[row, step] * w[column, step, 0..15]

Every output is added up in the order of the steps, whatever is computed beside it: what a row gets does not hang on the
others.
"""

import dataclasses

from llvmlite import ir

from eagle_jax.kernels.native.code import (
    F32,
    FLOATS,
    I32,
    I64,
    INTEGERS,
    LANES,
    PAIRS,
    POINTER,
    VECTOR,
    WORD,
    at,
    by_tiles,
    counting,
    declared,
    everywhere,
    features,
    i64,
    internal,
    read,
    write,
)
from eagle_jax.kernels.native.math import fma

MOST_ROWS = 6  # together, of x: with 4 columns all their sums are in registers of AVX-512, with 1 in those of AVX2
MOST_COLUMNS = 4
PRODUCTS_OF_PAIRS = "avx512bf16"


@dataclasses.dataclass(frozen=True)
class Strides:
    """Bytes between numbers. Steps of a row of x are a word apart, columns of y a vector.

    Attributes:
        x_row, y_row: between rows.
        w_column: between columns of w.
        w_step: between the steps of one.
    """

    x_row: ir.Value
    y_row: ir.Value
    w_column: ir.Value
    w_step: ir.Value


class Tiles:
    """Adds to a module, when they are first called, functions that compute `y` for a few rows.

    Args:
        paired: x and w are bfloat16, two to a step; else they are float32.
        adding: y is added to what it holds.
    """

    def __init__(self, module: ir.Module, *, paired: bool = False, adding: bool = False):
        self._module, self._paired, self._adding = module, paired, adding

    def any_rows(
        self,
        builder: ir.IRBuilder,
        pointers: tuple[ir.Value, ir.Value, ir.Value],
        sizes: tuple[ir.Value, ir.Value, ir.Value],
        strides: Strides,
    ) -> None:
        """Computes `y`.

        Args:
            pointers: to x, w and y.
            sizes: rows, columns and steps.
        """
        (x, w, y), (rows, columns, steps) = pointers, sizes

        def some(first: ir.Value, count: int) -> None:
            from_, to = at(builder, x, first, strides.x_row), at(builder, y, first, strides.y_row)
            self.few_rows(builder, (from_, w, to), (count, columns, steps), strides)

        by_tiles(builder, rows, MOST_ROWS, some)

    def few_rows(
        self,
        builder: ir.IRBuilder,
        pointers: tuple[ir.Value, ir.Value, ir.Value],
        sizes: tuple[int, ir.Value, ir.Value],
        strides: Strides,
    ) -> None:
        """The same for at most `MOST_ROWS` rows, whose number is known."""
        rows, columns, steps = sizes
        given = [*pointers, columns, steps, strides.x_row, strides.y_row, strides.w_column, strides.w_step]
        builder.call(self._function(rows), given)

    def _function(self, rows: int) -> ir.Function:
        name = f"tile_of_{rows}{'_paired' if self._paired else ''}{'_adding' if self._adding else ''}"
        if name in self._module.globals:
            return self._module.globals[name]
        function = internal(self._module, name, [POINTER] * 3 + [I64] * 6)
        x, w, y, columns, steps, *strides = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        tile = _Tile(builder, rows, Strides(*strides), self._paired, self._adding)
        together = MOST_COLUMNS if "avx512f" in features() else max(1, MOST_COLUMNS // rows)

        def some(first: ir.Value, count: int) -> None:
            tile.build((x, at(builder, w, first, tile.strides.w_column), at(builder, y, first, VECTOR)), steps, count)

        done = i64(0)
        while together:
            upto = builder.sub(columns, builder.urem(columns, i64(together)))
            with counting(builder, upto, done, step=together) as first:
                some(first, together)
            done, together = upto, together // 2
        builder.ret_void()
        return function


class _Tile:
    """`rows` rows of a few columns, of which all sums are in registers."""

    def __init__(self, builder: ir.IRBuilder, rows: int, strides: Strides, paired: bool, adding: bool):
        self.builder, self.rows, self.strides, self.paired, self.adding = builder, rows, strides, paired, adding
        self.sums = [[builder.alloca(FLOATS) for _ in range(MOST_COLUMNS)] for _ in range(rows)]

    def build(self, pointers: tuple[ir.Value, ir.Value, ir.Value], steps: ir.Value, columns: int) -> None:
        builder, strides = self.builder, self.strides
        x, w, y = pointers
        from_ = [at(builder, x, row, strides.x_row) for row in range(self.rows)]
        weights = [at(builder, w, column, strides.w_column) for column in range(columns)]
        to = [
            [at(builder, at(builder, y, row, strides.y_row), c, VECTOR) for c in range(columns)]
            for row in range(self.rows)
        ]
        places = [(sum_, place) for sums, line in zip(self.sums, to, strict=True) for sum_, place in zip(sums, line)]
        for sum_, place in places:
            builder.store(read(builder, place, FLOATS) if self.adding else ir.Constant(FLOATS, None), sum_)
        with counting(builder, steps) as step:
            offset = builder.mul(step, strides.w_step)
            here = [read(builder, at(builder, weight, offset), PAIRS if self.paired else FLOATS) for weight in weights]
            factors = [self._parts(weight) for weight in here]
            for line, sums in zip(from_, self.sums, strict=True):
                self._add(at(builder, line, step, WORD), here, factors, sums)
        for sum_, place in places:
            write(builder, builder.load(sum_, typ=FLOATS), place)

    def _add(
        self, place: ir.Value, weights: list[ir.Value], factors: list[list[ir.Value]], sums: list[ir.Value]
    ) -> None:
        """One step of one row, times the weights of each column, is added to its sums."""
        builder = self.builder
        value = read(builder, place, I32 if self.paired else F32)
        at_once = self.paired and PRODUCTS_OF_PAIRS in features()
        numbers = [value] if at_once or not self.paired else _halves(builder, value, I32, F32)
        spread = [everywhere(builder, number) for number in numbers]
        for weight, parts, sum_ in zip(weights, factors, sums):
            total = builder.load(sum_, typ=FLOATS)
            if at_once:
                total = _products_of_pairs(builder, total, builder.bitcast(spread[0], PAIRS), weight)
            else:
                for number, part in zip(spread, parts, strict=True):
                    total = fma(builder, number, part, total)
            builder.store(total, sum_)

    def _parts(self, weight: ir.Value) -> list[ir.Value]:
        """The float32 numbers of a step: one vector, or those of pairs, one by one."""
        if not self.paired:
            return [weight]
        return _halves(self.builder, self.builder.bitcast(weight, INTEGERS), INTEGERS, FLOATS)


def _halves(builder: ir.IRBuilder, pair: ir.Value, whole: ir.Type, kind: ir.Type) -> list[ir.Value]:
    """Both bfloat16 of 32 bits as float32, of which they are the upper half."""

    def all_of(value: int) -> ir.Constant:
        return ir.Constant(whole, [value] * LANES if isinstance(whole, ir.VectorType) else value)

    low, high = builder.shl(pair, all_of(16)), builder.and_(pair, all_of(-(2**16)))
    return [builder.bitcast(low, kind), builder.bitcast(high, kind)]


def _products_of_pairs(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    kind = ir.FunctionType(FLOATS, [FLOATS, PAIRS, PAIRS])
    return builder.call(declared(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", kind), [total, x, w])
