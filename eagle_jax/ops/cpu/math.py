"""Functions of vectors."""

import functools
import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from eagle_jax.ops.cpu.code import FLOATS, I32, INTEGERS, LANES, declared, every

LOWEST = -126.0  # a smaller power of two is taken as 0
LOG_2 = (0.693359375, -2.12194440e-4)  # together ln 2; the first has so few digits that its multiples are exact
TERMS = 8


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """`a * b + c`, rounded once."""
    found = declared(builder.module, f"llvm.fma.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS] * 3))
    return builder.call(found, [a, b, c])


def twos(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Of what power of two e to the power of some numbers is, to the next whole number."""
    nearest = declared(builder.module, f"llvm.rint.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    return builder.call(nearest, [builder.fmul(x, every(1 / math.log(2)))])


def to_the_power(builder: ir.IRBuilder, k: ir.Value) -> ir.Value:
    """2 to the power of whole numbers that are not positive."""
    usual = builder.fcmp_ordered(">=", k, every(LOWEST))
    bounded = builder.select(usual, k, every(LOWEST))
    exponent = builder.add(builder.fptosi(bounded, INTEGERS), ir.Constant(INTEGERS, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(INTEGERS, [23] * LANES)), FLOATS)
    return builder.select(usual, scale, every(0.0))


def exp_over(builder: ir.IRBuilder, x: ir.Value, top: ir.Value) -> ir.Value:
    """`exp(x) / 2**top` where `twos(x)` is not above `top`: a series in what is left of x, times a power of two.

    With another `top` it is another power of two times the same numbers, to the bit.
    """
    k, left = twos(builder, x), x
    for part in LOG_2:
        left = fma(builder, k, every(-part), left)
    series = every(1 / math.factorial(TERMS - 1))
    for power in reversed(range(TERMS - 1)):
        series = fma(builder, series, left, every(1 / math.factorial(power)))
    below = builder.fsub(k, top)
    usual = builder.fcmp_unordered(">=", below, every(LOWEST))
    return builder.select(usual, builder.fmul(series, to_the_power(builder, below)), every(0.0))


def silu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """`x / (1 + exp(-x))`."""
    positive = builder.fcmp_unordered(">=", x, every(0.0))
    power = exp_over(
        builder, builder.select(positive, builder.fneg(x), x), every(0.0)
    )  # of a number that is not above 0
    share = builder.select(positive, every(1.0), power)
    return builder.fdiv(builder.fmul(x, share), builder.fadd(every(1.0), power))


def larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger of each two, one instruction of x86; b where either is no number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def largest(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The largest of a vector of numbers. (LLVM's own function takes one lane after the other.)"""
    return _in_halves(builder, x, functools.partial(larger, builder))


def summed(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The sum of a vector, half and half, so always in the same order."""
    return _in_halves(builder, x, builder.fadd)


def _in_halves(builder: ir.IRBuilder, x: ir.Value, joined: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """One number of a vector: one half joined with the other, until it is one."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [ir.Constant(ir.VectorType(I32, width), list(range(begin, begin + width))) for begin in (0, width)]
        x = joined(*(builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), half) for half in halves))
    return builder.extract_element(x, ir.Constant(I32, 0))


def summed_up(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The sum of a vector of integers."""
    found = declared(builder.module, f"llvm.vector.reduce.add.v{LANES}i32", ir.FunctionType(I32, [INTEGERS]))
    return builder.call(found, [x])


def turned(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of 16 rows of 16: four times, row i is woven with row i + 8."""
    half = LANES // 2
    woven_ = [lane // 2 + LANES * (lane % 2) for lane in range(LANES)]
    parts = [ir.Constant(INTEGERS, [lane + begin for lane in woven_]) for begin in (0, half)]
    columns = list(rows)
    for _ in range(4):
        columns = [builder.shuffle_vector(columns[i], columns[i + half], part) for i in range(half) for part in parts]
    return columns
