"""Products of bfloat16 by AMX, Intel's matrix registers: 16 rows cost what one does while weights come from memory.

Eight registers hold tiles of 16 rows of 64 bytes. `tdpbf16ps` adds to 16 x 16 sums the products of 16 rows with 32
inputs of 16 outputs, pair by pair: panels of packed weights (`panels.Panels`) have that order already. Every sum is
accumulated in the order of the inputs, so the result of a row does not depend on other rows.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

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
# Registers behind those of the sums: rows and weights of 32 inputs, and of those that are left.
X, W, X_LEFT, W_LEFT = 4, 5, 6, 7


class AmxTiles:
    """`tiles.Tiles` for bfloat16 by AMX: a function that is added to the module when it is first called."""

    max_rows = TILE

    def __init__(self, module: ir.Module):
        self._module = module

    def multiply_rows(
        self, builder: ir.IRBuilder, addresses: Addresses, sizes: tuple[int, ir.Value, ir.Value], strides: Strides
    ) -> None:
        """As `Tiles.multiply_rows`."""
        rows, columns, steps = sizes
        operands = [addresses.x, addresses.w, addresses.y, i64(rows), columns, steps]
        builder.call(self._function(), [*operands, strides.x_row, strides.y_row, strides.w_column, strides.w_step])

    def _function(self) -> ir.Function:
        name = "amx_tile"
        if name in self._module.globals:
            return self._module.globals[name]
        function = internal_function(self._module, name, [POINTER] * 3 + [I64] * 7)
        x, w, y, rows, columns, steps, *strides = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        left = builder.and_(steps, i64(TILE - 1))
        _configure(builder, rows, left)
        tile = _Tile(builder, (x, w, y), Strides(*strides), steps, left)
        begin, columns_at_once = i64(0), COLUMNS
        while columns_at_once:
            end = builder.sub(columns, builder.urem(builder.sub(columns, begin), i64(columns_at_once)))
            with for_range(builder, end, begin, step=columns_at_once) as first:
                tile.build(first, columns_at_once)
            begin, columns_at_once = end, columns_at_once // 2
        _call(builder, "tilerelease")
        builder.ret_void()
        return function


def _configure(builder: ir.IRBuilder, rows: ir.Value, left: ir.Value) -> None:
    """Gives the registers their sizes: bytes of a row from byte 16 on, and rows from byte 48 on."""
    config = alloca(builder, VECTOR)
    write(builder, constant(0.0), config)
    write(builder, ir.Constant(I8, 1), config)  # the only palette there is
    words_left = maximum(builder, left, i64(1))
    whole = {number: (rows, i64(TILE)) for number in (*range(COLUMNS), X)} | {W: (i64(TILE), i64(TILE))}
    for number, (height, words) in (whole | {X_LEFT: (rows, words_left), W_LEFT: (words_left, i64(TILE))}).items():
        width = builder.trunc(builder.mul(words, i64(WORD)), I16)
        write(builder, width, at(builder, config, 16 + 2 * number))
        write(builder, builder.trunc(height, I8), at(builder, config, 48 + number))
    _call(builder, "ldtilecfg", config)


class _Tile:
    """The products of all rows with a few columns."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        addresses: tuple[ir.Value, ir.Value, ir.Value],
        strides: Strides,
        steps: ir.Value,
        left: ir.Value,
    ):
        self._builder, self._addresses, self._strides = builder, addresses, strides
        self._whole, self._left = builder.sub(steps, left), left

    def build(self, first: ir.Value, columns: int) -> None:
        builder, strides, (x, w, y) = self._builder, self._strides, self._addresses
        weights = [at(builder, at(builder, w, first, strides.w_column), i, strides.w_column) for i in range(columns)]
        for column in range(columns):
            _call(builder, "tilezero", column)

        def add(step: ir.Value, x_register: int, w_register: int) -> None:
            _call(builder, "tileloadd64", x_register, at(builder, x, step, WORD), strides.x_row)
            offset = builder.mul(step, strides.w_step)
            for column, weight in enumerate(weights):
                _call(builder, "tileloadd64", w_register, at(builder, weight, offset), strides.w_step)
                _call(builder, "tdpbf16ps", column, x_register, w_register)

        with for_range(builder, self._whole, step=TILE) as step:
            add(step, X, W)
        with builder.if_then(builder.icmp_unsigned("!=", self._left, i64(0))):
            add(self._whole, X_LEFT, W_LEFT)
        for column in range(columns):
            place = at(builder, at(builder, y, first, VECTOR), column, VECTOR)
            _call(builder, "tilestored64", column, place, strides.y_row)


def _call(builder: ir.IRBuilder, name: str, *arguments: int | ir.Value) -> None:
    """Calls an intrinsic; whole numbers are those of registers."""
    values = [ir.Constant(I8, value) if isinstance(value, int) else value for value in arguments]
    kind = ir.FunctionType(VOID, [value.type for value in values])
    builder.call(declare(builder.module, f"llvm.x86.{name}", kind), values)
