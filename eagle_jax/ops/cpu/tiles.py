"""Sums of products in registers, which products with weights and attention are made of.

    y[row, column, 0..15]  =  sum over steps of  x[row, step] * w[column, step, 0..15]

Every output is added up in the order of the steps, whatever is computed beside it: what a row gets does not hang on the
others.
"""

import dataclasses

from llvmlite import ir

from eagle_jax.ops.cpu.code import (
    FLOATS,
    I32,
    I64,
    INTEGERS,
    POINTER,
    WORD,
    at,
    counting,
    features,
    fetch,
    forget,
    i64,
    internal,
    read,
    smaller,
    values_of,
    write,
)
from eagle_jax.ops.cpu.numbers import Numbers
from eagle_jax.ops.cpu.places import Places, Strides

MOST_ROWS = 6  # together, of x: with 4 columns their sums fit into the registers of AVX-512, with 1 into those of AVX2
MOST_COLUMNS = 4
# The sums of 7 rows leave 4 of the registers: the weights of 2 columns, and after them those of the other 2. A pass of
# 7 takes some 3 % less time than with half the columns at a time. What has to be unpacked first takes registers too.
REGISTERS, MOST_OF_DIRECT = 32, 7
# With half the columns AVX-512 has room for 12 rows, which read weights once, not twice: a pass of 9 takes a tenth less
# time. The code of each number of rows takes a while to make.
MOST_OF_WEIGHTS = 9
BESIDE_SUMS = 2  # columns
# A core that multiplies many rows looks too few weights ahead to keep memory busy. From so many rows on it fetches what
# lies so many bytes further, a third of a first cache of 48 KB; into the second alone 6 rows take a tenth longer there,
# and 3 rows became slower with either. Where the first has 32 KB (Zen 4) it is the other way round: 8 rows take a tenth
# less time with weights in the second.
FETCHING_FROM, AHEAD = 4, 16384


class Tiles:
    """Adds to a module, when they are first called, functions that compute `y` for a few rows.

    Args:
        numbers: what x and w are.
        fetching: w is read once, and may come from memory. Of rounded weights, whose arithmetic takes longer, some
            products became slower.
        summing: of floats, the sum of each row of x is added to what is at its origin, the same number in 16 lanes.
    """

    def __init__(self, module: ir.Module, numbers: Numbers, fetching: bool = False, summing: bool = False):
        self._module, self._numbers, self._fetching, self._summing = module, numbers, fetching, summing

    @property
    def most_rows(self) -> int:
        """Together, of x: more where there are registers for them, yet more of a weight that is read once."""
        return MOST_OF_WEIGHTS if self._fetching and "avx512f" in features() else self._most_beside_all

    @property
    def _most_beside_all(self) -> int:
        """Rows of which the sums with `MOST_COLUMNS` fit into the registers; or with fewer, of a lesser CPU."""
        return MOST_OF_DIRECT if self._numbers.direct and "avx512f" in features() else MOST_ROWS

    def few_rows(
        self, builder: ir.IRBuilder, places: Places, sizes: tuple[int, ir.Value, ir.Value], strides: Strides
    ) -> None:
        """Computes `y` of at most `most_rows` rows.

        Args:
            sizes: rows, columns and steps.
        """
        rows, columns, steps = sizes
        builder.call(self._function(rows), [*values_of(places), columns, steps, *values_of(strides)])

    def _function(self, rows: int) -> ir.Function:
        ahead = self._fetching and rows >= FETCHING_FROM
        name = f"tile_of_{rows}_{self._numbers.name}{'_ahead' if ahead else ''}{'_summing' if self._summing else ''}"
        if name in self._module.globals:
            return self._module.globals[name]
        pointers, bytes_ = (len(dataclasses.fields(kind)) for kind in (Places, Strides))
        function = internal(self._module, name, [POINTER] * pointers + [I64] * (2 + bytes_))
        places, strides = Places(*function.args[:pointers]), Strides(*function.args[-bytes_:])
        columns, steps = function.args[pointers:-bytes_]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        tile = _Tile(builder, rows, strides, self._numbers, AHEAD if ahead else 0)
        together = self._together(rows)
        done = _sum_up(builder, tile, places, columns, steps) if self._summing else i64(0)
        while together:
            upto = builder.sub(columns, builder.urem(builder.sub(columns, done), i64(together)))
            with counting(builder, upto, done, step=together) as first:
                tile.build(places.column(builder, first, strides), steps, together)
            done, together = upto, together // 2
        builder.ret_void()
        return function

    def _together(self, rows: int) -> int:
        """Columns that so many rows are multiplied with at a time."""
        if "avx512f" in features():
            return MOST_COLUMNS if rows <= self._most_beside_all else MOST_COLUMNS // 2
        return max(1, MOST_COLUMNS // rows)


def _sum_up(builder: ir.IRBuilder, tile: "_Tile", places: Places, columns: ir.Value, steps: ir.Value) -> ir.Value:
    """Adds up rows of x, beside the products with the first columns where there are registers for both; returns how
    many columns that were.
    """
    if "avx512f" not in features():
        tile.build(places, steps, 0, summing=True)
        return i64(0)
    with builder.if_else(builder.icmp_unsigned("<", columns, i64(BESIDE_SUMS))) as (one, several):
        with one:
            tile.build(places, steps, 1, summing=True)
        with several:
            tile.build(places, steps, BESIDE_SUMS, summing=True)
    return smaller(builder, columns, i64(BESIDE_SUMS))


def _in_registers(rows: int, columns: int) -> int:
    """Of so many columns those whose weights are in registers with the sums of all; 1 where there are no columns."""
    return max(columns if rows * columns + columns < REGISTERS else columns // 2, 1)


class _Tile:
    """`rows` rows of a few columns, of which all sums are in registers.

    Args:
        ahead: bytes behind the weights that are multiplied are those that the CPU is told to fetch; 0 is none.
    """

    def __init__(self, builder: ir.IRBuilder, rows: int, strides: Strides, numbers: Numbers, ahead: int):
        self.builder, self.rows, self.strides, self.numbers, self.ahead = builder, rows, strides, numbers, ahead
        self.sums = [[builder.alloca(numbers.sums) for _ in range(MOST_COLUMNS)] for _ in range(rows)]
        self.rows_sums = [builder.alloca(FLOATS) for _ in range(rows)]

    def build(self, places: Places, steps: ir.Value, columns: int, summing: bool = False) -> None:
        """Computes y of some columns, or of none, and the sums of rows of x if it is `summing`."""
        builder, numbers = self.builder, self.numbers
        lines = [places.row(builder, row, self.strides) for row in range(self.rows)]
        weights = [places.column(builder, column, self.strides).w for column in range(columns)]
        outputs = [
            (self.sums[row][column], line.column(builder, column, self.strides))
            for row, line in enumerate(lines)
            for column in range(columns)
        ]
        rows_sums = list(zip(self.rows_sums, lines, strict=True)) if summing else []
        for sum_, place in outputs:
            builder.store(numbers.begin(builder, place), sum_)
        for sum_, line in rows_sums:
            builder.store(read(builder, line.origin, FLOATS), sum_)
        with counting(builder, steps) as step:
            offset = builder.mul(step, self.strides.w_step)
            vectors = [at(builder, weight, offset) for weight in weights]
            for vector in vectors if self.ahead else []:
                fetch(builder, at(builder, vector, self.ahead))
            each = _in_registers(self.rows, columns)
            for begin in range(0, columns, each):
                if each < columns:  # LLVM would keep x for all columns, in registers that are not there
                    forget(builder)
                some = slice(begin, begin + each)
                self._add(step, lines, vectors[some], [of_row[some] for of_row in self.sums])
            for sum_, line in rows_sums:
                (x,) = numbers.spread(builder, read(builder, at(builder, line.x, step, WORD), I32))
                builder.store(builder.fadd(builder.load(sum_, typ=FLOATS), x), sum_)
        for sum_, place in outputs:
            numbers.end(builder, builder.load(sum_, typ=numbers.sums), place)
        for sum_, line in rows_sums:
            write(builder, builder.load(sum_, typ=FLOATS), line.origin)

    def _add(self, step: ir.Value, lines: list[Places], vectors: list[ir.Value], sums: list[list[ir.Value]]) -> None:
        """The products of a step of all rows with some columns."""
        builder, numbers = self.builder, self.numbers
        weights = [read(builder, vector, INTEGERS) for vector in vectors]
        for word in range(numbers.words):
            parts = [numbers.part(builder, weight, word) for weight in weights]
            for line, of_row in zip(lines, sums, strict=True):
                at_word = at(builder, at(builder, line.x, step, WORD * numbers.words), word, WORD)
                x = numbers.spread(builder, read(builder, at_word, I32))
                for part, sum_ in zip(parts, of_row, strict=True):
                    total = builder.load(sum_, typ=numbers.sums)
                    builder.store(numbers.added(builder, total, x, part), sum_)
