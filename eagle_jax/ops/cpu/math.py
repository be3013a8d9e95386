"""Mathematical functions of vectors."""

import functools
import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from eagle_jax.ops.cpu.code import FLOATS, I32, INTEGERS, LANES, constant, declare

LOWEST = -126.0  # smaller powers of two are flushed to 0
LOG_2 = (0.693359375, -2.12194440e-4)  # their sum is ln 2; the first has few enough bits that its multiples are exact
TERMS = 8


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Computes `a * b + c`, rounded once."""
    intrinsic = declare(builder.module, f"llvm.fma.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS] * 3))
    return builder.call(intrinsic, [a, b, c])


def binary_exponent(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Computes `round(x / ln 2)`."""
    nearest = declare(builder.module, f"llvm.rint.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    return builder.call(nearest, [builder.fmul(x, constant(1 / math.log(2)))])


def exp2(builder: ir.IRBuilder, k: ir.Value) -> ir.Value:
    """Computes `2**k` of integers k <= 0, given as floats."""
    in_range = builder.fcmp_ordered(">=", k, constant(LOWEST))
    bounded = builder.select(in_range, k, constant(LOWEST))
    exponent = builder.add(builder.fptosi(bounded, INTEGERS), ir.Constant(INTEGERS, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(INTEGERS, [23] * LANES)), FLOATS)
    return builder.select(in_range, scale, constant(0.0))


def scaled_exp(builder: ir.IRBuilder, x: ir.Value, top: ir.Value) -> ir.Value:
    """Computes `exp(x) / 2**top`, for `binary_exponent(x) <= top`: a Taylor series times a power of two.

    Another `top` gives the same mantissa bits with another exponent.
    """
    k, remainder = binary_exponent(builder, x), x
    for part in LOG_2:
        remainder = fma(builder, k, constant(-part), remainder)
    series = constant(1 / math.factorial(TERMS - 1))
    for exp in reversed(range(TERMS - 1)):
        series = fma(builder, series, remainder, constant(1 / math.factorial(exp)))
    exponent = builder.fsub(k, top)
    in_range = builder.fcmp_unordered(">=", exponent, constant(LOWEST))
    return builder.select(in_range, builder.fmul(series, exp2(builder, exponent)), constant(0.0))


def silu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Computes `x / (1 + exp(-x))`."""
    positive = builder.fcmp_unordered(">=", x, constant(0.0))
    exp = scaled_exp(
        builder, builder.select(positive, builder.fneg(x), x), constant(0.0)
    )  # of a number that is not above 0
    numerator = builder.select(positive, constant(1.0), exp)
    return builder.fdiv(builder.fmul(x, numerator), builder.fadd(constant(1.0), exp))


def maximum(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Computes the elementwise maximum, one instruction on x86; b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def max_lane(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Returns the largest lane. (LLVM's reduction intrinsic would go lane by lane.)"""
    return _reduce_lanes(builder, x, functools.partial(maximum, builder))


def sum_lanes(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Returns the sum of all lanes, by halves, so always in the same order."""
    return _reduce_lanes(builder, x, builder.fadd)


def _reduce_lanes(builder: ir.IRBuilder, x: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduces a vector by combining its halves until one lane is left."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [ir.Constant(ir.VectorType(I32, width), list(range(begin, begin + width))) for begin in (0, width)]
        x = combine(*(builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), half) for half in halves))
    return builder.extract_element(x, ir.Constant(I32, 0))


def sum_integer_lanes(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Returns the sum of all lanes of integers."""
    intrinsic = declare(builder.module, f"llvm.vector.reduce.add.v{LANES}i32", ir.FunctionType(I32, [INTEGERS]))
    return builder.call(intrinsic, [x])


def transposed(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Transposes 16 rows of 16, by interleaving row i with row i + 8 four times."""
    half = LANES // 2
    interleaved = [lane // 2 + LANES * (lane % 2) for lane in range(LANES)]
    parts = [ir.Constant(INTEGERS, [lane + begin for lane in interleaved]) for begin in (0, half)]
    columns = list(rows)
    for _ in range(4):
        columns = [builder.shuffle_vector(columns[i], columns[i + half], part) for i in range(half) for part in parts]
    return columns
