"""Products by AMX, Intel's matrix registers: 16 rows cost what one does while weights come from memory.

Eight registers hold tiles of 16 rows of 16 words. `tdpbf16ps` adds to 16 x 16 sums the products of 16 rows with 32
inputs of 16 outputs, and `tdpbsud` those of 64 inputs, signed bytes with unsigned ones: panels of packed weights have
that order already. Sums of bfloat16 are accumulated in the order of the inputs and those of bytes are exact, so the
result of a row does not depend on other rows.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

import contextlib
from collections.abc import Iterator, Sequence

from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.code import (
    I8,
    I16,
    I64,
    POINTER,
    VECTOR,
    VOID,
    WORD,
    alloca,
    at,
    constant,
    declare,
    for_range,
    i64,
    internal_function,
    maximum,
    write,
)

TILE = 16  # rows of a register, and words of a row
COLUMNS = 4  # of outputs, a register of sums each
# Registers after those of the sums: rows and weights of 16 words, and of those that are left.
X, W, X_LEFT, W_LEFT = 4, 5, 6, 7


class AmxTiles:
    """`tiles.Tiles` for bfloat16 by AMX: a function that is added to the module when it is first called."""

    max_rows = TILE

    def __init__(self, module: ir.Module):
        self._module = module

    def multiply_rows(
        self, builder: ir.IRBuilder, addresses: Addresses, sizes: tuple[int, ir.Value, ir.Value], strides: Strides
    ) -> None:
        """Works as `Tiles.multiply_rows`."""
        rows, columns, steps = sizes
        operands = [addresses.x, addresses.w, addresses.y, i64(rows), columns, steps]
        builder.call(self._function(), [*operands, strides.x_row, strides.y_row, strides.w_column, strides.w_step])

    def _function(self) -> ir.Function:
        name = "amx_tile"
        if name in self._module.globals:
            return self._module.globals[name]
        function = internal_function(self._module, name, [POINTER] * 3 + [I64] * 7)
        x, w, y, rows, columns, steps, x_row, y_row, w_column, w_step = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        with configured(builder, rows, steps):
            for first, count in column_blocks(builder, columns):
                weights = [at(builder, at(builder, w, first, w_column), i, w_column) for i in range(count)]
                multiply(builder, "tdpbf16ps", (x, x_row), (weights, w_step), steps)
                store_sums(builder, at(builder, y, first, VECTOR), VECTOR, y_row, count)
        builder.ret_void()
        return function


@contextlib.contextmanager
def configured(builder: ir.IRBuilder, rows: ir.Value, words: ir.Value) -> Iterator[None]:
    """Sets the registers to tiles of `rows` rows while the instructions built inside run.

    Args:
        words: number of words of the rows, or any other that leaves as many words after tiles of 16.
    """
    config = alloca(builder, VECTOR)
    write(builder, constant(0.0), config)
    write(builder, ir.Constant(I8, 1), config)  # the only palette there is
    words_left = maximum(builder, _left(builder, words), i64(1))
    sizes = {number: (rows, i64(TILE)) for number in (*range(COLUMNS), X)} | {W: (i64(TILE), i64(TILE))}
    for number, (height, width) in (sizes | {X_LEFT: (rows, words_left), W_LEFT: (words_left, i64(TILE))}).items():
        row_bytes = builder.trunc(builder.mul(width, i64(WORD)), I16)  # from byte 16 on; numbers of rows from 48 on
        write(builder, row_bytes, at(builder, config, 16 + 2 * number))
        write(builder, builder.trunc(height, I8), at(builder, config, 48 + number))
    _call(builder, "ldtilecfg", config)
    yield
    _call(builder, "tilerelease")


def column_blocks(builder: ir.IRBuilder, columns: ir.Value) -> Iterator[tuple[ir.Value, int]]:
    """Loops over all columns, `COLUMNS` at a time and then fewer: the first of a block, and how many it has."""
    begin, count = i64(0), COLUMNS
    while count:
        end = builder.sub(columns, builder.urem(builder.sub(columns, begin), i64(count)))
        with for_range(builder, end, begin, step=count) as first:
            yield first, count
        begin, count = end, count // 2


def multiply(
    builder: ir.IRBuilder,
    instruction: str,
    rows: tuple[ir.Value, ir.Value],
    columns: tuple[Sequence[ir.Value], ir.Value],
    words: ir.Value,
) -> None:
    """Products of all rows with a few columns; register i has the sums of column i.

    Args:
        rows: address of the first, and the bytes from row to row.
        columns: address of each, and the bytes from word to word.
        words: words of a row.
    """
    (x, x_row), (weights, w_step) = rows, columns
    for column in range(len(weights)):
        _call(builder, "tilezero", column)

    def add(word: ir.Value, x_register: int, w_register: int) -> None:
        _call(builder, "tileloadd64", x_register, at(builder, x, word, WORD), x_row)
        offset = builder.mul(word, w_step)
        for column, weight in enumerate(weights):
            _call(builder, "tileloadd64", w_register, at(builder, weight, offset), w_step)
            _call(builder, instruction, column, x_register, w_register)

    left = _left(builder, words)
    num_full = builder.sub(words, left)
    with for_range(builder, num_full, step=TILE) as word:
        add(word, X, W)
    with builder.if_then(builder.icmp_unsigned("!=", left, i64(0))):
        add(num_full, X_LEFT, W_LEFT)


def store_sums(builder: ir.IRBuilder, y: ir.Value, column_bytes: int, row: ir.Value, columns: int) -> None:
    """Stores the sums of the columns, `column_bytes` apart, with `row` bytes from row to row."""
    for column in range(columns):
        _call(builder, "tilestored64", column, at(builder, y, column, column_bytes), row)


def _left(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """Returns the number of words that are left after tiles of 16."""
    return builder.and_(words, i64(TILE - 1))


def _call(builder: ir.IRBuilder, name: str, *arguments: int | ir.Value) -> None:
    """Calls an intrinsic; whole numbers are those of registers."""
    values = [ir.Constant(I8, value) if isinstance(value, int) else value for value in arguments]
    kind = ir.FunctionType(VOID, [value.type for value in values])
    builder.call(declare(builder.module, f"llvm.x86.{name}", kind), values)
