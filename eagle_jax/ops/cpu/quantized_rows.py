"""Blocks of a row of float32 as integers of 16 or 8 bits: the largest becomes `QuantizedArithmetic.highest`."""

import numpy as np
from llvmlite import ir

from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    INTEGERS,
    LANES,
    VECTOR,
    WORD,
    alloca,
    at,
    constant,
    declare,
    for_range,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma, max_lane, maximum, sum_integer_lanes, sum_lanes
from eagle_jax.ops.cpu.quantized_arithmetic import QuantizedArithmetic

MIN_SCALE = float(np.float32(1e-34))  # of a block's scale; blocks with a smaller one are zeros


def scales_of(builder: ir.IRBuilder, row_address: ir.Value, size: ir.Value, highest: int) -> tuple[ir.Value, ir.Value]:
    """Returns a block's scale, NaN if a value is not finite, and its inverse, 0 for blocks of zeros."""
    maxima, non_finite = alloca(builder, VECTOR), alloca(builder, VECTOR)
    for accumulator in (maxima, non_finite):
        write(builder, constant(0.0), accumulator)
    absolute = declare(builder.module, f"llvm.fabs.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    with for_range(builder, size, step=LANES) as index:
        number = read(builder, at(builder, row_address, index, WORD), FLOATS)
        write(builder, maximum(builder, builder.call(absolute, [number]), read(builder, maxima, FLOATS)), maxima)
        write(builder, fma(builder, number, constant(0.0), read(builder, non_finite, FLOATS)), non_finite)
    maximum_ = max_lane(builder, read(builder, maxima, FLOATS))
    non_finite_sum = sum_lanes(builder, read(builder, non_finite, FLOATS))
    zero, min_scale, max_code = (ir.Constant(F32, number) for number in (0.0, MIN_SCALE, float(highest)))
    scale = builder.fadd(builder.fdiv(maximum_, max_code), non_finite_sum)
    inverse_scale = builder.select(builder.fcmp_ordered(">", scale, min_scale), builder.fdiv(max_code, maximum_), zero)
    return scale, inverse_scale


def quantize(
    builder: ir.IRBuilder,
    row_address: ir.Value,
    destination: tuple[ir.Value, ir.Value],
    size: ir.Value,
    inverse_scale: ir.Value,
    arithmetic: QuantizedArithmetic,
) -> ir.Value:
    """Quantizes a block of `size` inputs, rounding ties to even; returns the sum of the codes.

    Args:
        destination: address, and the bytes from plane to plane (`QuantizedArithmetic.planes`).
    """
    (address, plane), factor, total = destination, splat(builder, inverse_scale), alloca(builder, VECTOR)
    write(builder, ir.Constant(INTEGERS, None), total)
    nearest = declare(builder.module, f"llvm.rint.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    with for_range(builder, size, step=LANES) as index:
        scaled = builder.fmul(read(builder, at(builder, row_address, index, WORD), FLOATS), factor)
        codes = builder.fptosi(builder.call(nearest, [scaled]), INTEGERS)
        for number, part in enumerate(arithmetic.convert(builder, codes)):
            destination = at(builder, at(builder, address, number, plane), index, arithmetic.part_bits // 8)
            write(builder, part, destination)
        write(builder, builder.add(read(builder, total, INTEGERS), codes), total)
    return sum_integer_lanes(builder, read(builder, total, INTEGERS))
