"""Products of quantized rows with quantized weights by AMX, with the bits that `tiles.Tiles` gives: sums are exact."""

import contextlib
import dataclasses
from collections.abc import Iterator

from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.amx import COLUMNS, TILE, column_blocks, configured, multiply, store_sums
from eagle_jax.ops.cpu.code import (
    I32,
    I64,
    INTEGERS,
    POINTER,
    VECTOR,
    WORD,
    alloca,
    at,
    field_values,
    for_range,
    i64,
    internal_function,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.quantized_arithmetic import QuantizedArithmetic

MAX_WORDS = 32  # of the bytes of a block, 128 inputs


class AmxByteTiles:
    """`tiles.Tiles` for one block of quantized weights: a function that is added to the module when it is first called.

    The low and the high bytes of rows of 16 bits are rows of their own (`QuantizedArithmetic.in_bytes`).
    """

    def __init__(self, module: ir.Module, arithmetic: QuantizedArithmetic):
        self._module, self._arithmetic = module, arithmetic
        self.max_rows = TILE // arithmetic.planes

    @contextlib.contextmanager
    def prepared(self, builder: ir.IRBuilder, rows: int, group: ir.Value) -> Iterator[None]:
        """Works as `Tiles.prepared`."""
        with configured(builder, i64(rows * self._arithmetic.planes), builder.udiv(group, i64(WORD))):
            yield

    def multiply_rows(
        self, builder: ir.IRBuilder, addresses: Addresses, sizes: tuple[int, ir.Value, ir.Value], strides: Strides
    ) -> None:
        """Works as `Tiles.multiply_rows`."""
        rows, columns, steps = sizes
        builder.call(self._function(), [*field_values(addresses), i64(rows), columns, steps, *field_values(strides)])

    def _function(self) -> ir.Function:
        arithmetic, name = self._arithmetic, f"amx_tile_{self._arithmetic.name}"
        if name in self._module.globals:
            return self._module.globals[name]
        pointers, bytes_ = (len(dataclasses.fields(kind)) for kind in (Addresses, Strides))
        function = internal_function(self._module, name, [POINTER] * pointers + [I64] * (3 + bytes_))
        addresses, strides = Addresses(*function.args[:pointers]), Strides(*function.args[-bytes_:])
        rows, columns, steps = function.args[pointers:-bytes_]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        sums = alloca(builder, COLUMNS * TILE * VECTOR)
        unpacked = alloca(builder, COLUMNS * MAX_WORDS * VECTOR)
        words = builder.mul(steps, i64(arithmetic.words))
        x_row = builder.udiv(strides.x_row, i64(arithmetic.planes))
        for first, count in column_blocks(builder, columns):
            block = [addresses.column(builder, builder.add(first, i64(i)), strides) for i in range(count)]
            weights, w_step = [column.w for column in block], strides.w_step
            if arithmetic.words > 1:
                weights, w_step = _unpack(builder, weights, w_step, steps, arithmetic, unpacked), i64(VECTOR)
            multiply(builder, "tdpbsud", (addresses.x, x_row), (weights, w_step), words)
            store_sums(builder, sums, TILE * VECTOR, i64(VECTOR), count)
            with for_range(builder, rows) as row:
                for i, column in enumerate(block):
                    output = column.row(builder, row, strides)
                    total = _sum(builder, at(builder, sums, i, TILE * VECTOR), row, arithmetic)
                    arithmetic.store(builder, builder.add(total, arithmetic.initial(builder, output)), output)
        builder.ret_void()
        return function


def _unpack(
    builder: ir.IRBuilder,
    weights: list[ir.Value],
    w_step: ir.Value,
    steps: ir.Value,
    arithmetic: QuantizedArithmetic,
    to: ir.Value,
) -> list[ir.Value]:
    """Writes columns of weights as words of four bytes; returns the address of each."""
    places = [at(builder, to, i, MAX_WORDS * VECTOR) for i in range(len(weights))]
    with for_range(builder, steps) as step:
        for weight, place in zip(weights, places, strict=True):
            vector = read(builder, at(builder, weight, step, w_step), INTEGERS)
            destination = at(builder, place, step, arithmetic.words * VECTOR)
            for word in range(arithmetic.words):
                (part,) = arithmetic.weight_factors(builder, vector, word)
                write(builder, part, at(builder, destination, word, VECTOR))
    return places


def _sum(builder: ir.IRBuilder, sums: ir.Value, row: ir.Value, arithmetic: QuantizedArithmetic) -> ir.Value:
    """Returns the sums of a row: those of its low bytes, and those of its high ones times 256."""
    first = at(builder, sums, row, arithmetic.planes * VECTOR)
    total = read(builder, first, INTEGERS)
    if arithmetic.planes == 1:
        return total
    high = read(builder, at(builder, first, VECTOR), INTEGERS)
    return builder.add(total, builder.shl(high, splat(builder, ir.Constant(I32, 8))))
