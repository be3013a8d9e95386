"""What is multiplied, and how: float32, pairs of bfloat16, rounded weights.

A vector of weights has 16 words of 32 bits, one for each output, with as many inputs in a word as there is room for.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from llvmlite import ir

from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I16,
    I32,
    INTEGERS,
    LANES,
    PAIRS,
    WORD,
    at,
    declared,
    everywhere,
    features,
    read,
    write,
)
from eagle_jax.ops.cpu.math import fma
from eagle_jax.ops.cpu.places import Places

PRODUCTS_OF_PAIRS = "avx512bf16"
SHORTS, WIDE = ir.VectorType(I16, 2 * LANES), ir.VectorType(I32, 2 * LANES)
Factors = list[ir.Value]  # vectors, of which each is multiplied with one


@runtime_checkable
class Numbers(Protocol):
    """One way to multiply."""

    @property
    def name(self) -> str:
        """For functions made with it."""

    @property
    def sums(self) -> ir.Type:
        """The kind of 16 sums, in registers."""

    @property
    def words(self) -> int:
        """Of x, of one row, that belong to a vector of weights."""

    @property
    def direct(self) -> bool:
        """Whether words are multiplied as they lie in memory, without registers for their parts."""

    def begin(self, builder: ir.IRBuilder, places: Places) -> ir.Value:
        """What sums begin with."""

    def part(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        """Of a vector of weights what one of the `words` of x is multiplied with."""

    def spread(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        """A word of x as factors, the same for every output."""

    def added(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        """`total` and the products."""

    def end(self, builder: ir.IRBuilder, total: ir.Value, places: Places) -> None:
        """Writes outputs."""


@dataclasses.dataclass(frozen=True)
class Singles:
    """float32.

    Attributes:
        adding: y is added to what it holds.
        size: bytes of a number of x.
        inputs: numbers in a word.
    """

    adding: bool = False
    sums = FLOATS
    words = 1
    direct = True
    size = 4
    inputs = 1

    @property
    def name(self) -> str:
        return "adding" if self.adding else "single"

    def of(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """16 numbers of x, as they lie in memory."""
        return floats

    def begin(self, builder: ir.IRBuilder, places: Places) -> ir.Value:
        return read(builder, places.y, FLOATS) if self.adding else ir.Constant(FLOATS, None)

    def part(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return [builder.bitcast(weight, FLOATS)]

    def spread(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [builder.bitcast(everywhere(builder, word), FLOATS)]

    def added(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        return _with_products(builder, total, x, weight)

    def end(self, builder: ir.IRBuilder, total: ir.Value, places: Places) -> None:
        write(builder, total, places.y)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Two bfloat16 in a word, added up in float32."""

    name = "paired"
    sums = FLOATS
    words = 1
    size = 2
    inputs = 2

    @property
    def direct(self) -> bool:
        return PRODUCTS_OF_PAIRS in features()

    def of(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """16 numbers of x, as they lie in memory: the nearest ones, ties to even."""
        bits = builder.bitcast(floats, INTEGERS)
        odd = builder.and_(builder.lshr(bits, _integers(16)), _integers(1))
        nearest = builder.lshr(builder.add(bits, builder.add(odd, _integers(2**15 - 1))), _integers(16))
        none = builder.fcmp_unordered("uno", floats, floats)
        return builder.trunc(builder.select(none, _integers(0x7FC0), nearest), ir.VectorType(I16, LANES))

    def begin(self, builder: ir.IRBuilder, places: Places) -> ir.Value:
        return ir.Constant(FLOATS, None)

    def part(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return self._factors(builder, weight)

    def spread(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return self._factors(builder, everywhere(builder, word))

    def _factors(self, builder: ir.IRBuilder, words: ir.Value) -> Factors:
        """As they are, where this CPU multiplies pairs; else as two float32, of which they are the upper halves."""
        if PRODUCTS_OF_PAIRS in features():
            return [builder.bitcast(words, PAIRS)]
        low, high = builder.shl(words, _integers(16)), builder.and_(words, _integers(-(2**16)))
        return [builder.bitcast(low, FLOATS), builder.bitcast(high, FLOATS)]

    def added(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if PRODUCTS_OF_PAIRS not in features():
            return _with_products(builder, total, x, weight)
        kind = ir.FunctionType(FLOATS, [FLOATS, PAIRS, PAIRS])
        product = declared(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", kind)
        return builder.call(product, [total, *x, *weight])

    def end(self, builder: ir.IRBuilder, total: ir.Value, places: Places) -> None:
        write(builder, total, places.y)


FLOATING: dict[np.dtype, Singles | Pairs] = {jnp.dtype(jnp.float32): Singles(), jnp.dtype(jnp.bfloat16): Pairs()}
"""How weights of a dtype are multiplied."""


@dataclasses.dataclass(frozen=True)
class Levels:
    """Rounded weights, of which x is integers too; sums are whole numbers, y float32 and added to what it holds.

    A word of weights has 32 / bits inputs without a sign: 2j begins at bit j `bits`, 2j + 1 at 16 + j `bits`. So shift
    and mask make numbers of it that are as wide as those of x, which CPUs multiply and add up in one go.

    Attributes:
        bits: of a weight, 8 or 4.
        x_bits: of a number of x, 16; or 8 where `by_bytes`.
    """

    bits: int
    x_bits: int
    sums = INTEGERS
    direct = False

    @property
    def name(self) -> str:
        return f"int{self.bits}_by_int{self.x_bits}"

    @property
    def inputs(self) -> int:
        """In a word of weights."""
        return 32 // self.bits

    @property
    def words(self) -> int:
        return self.x_bits // self.bits

    @property
    def order(self) -> list[int]:
        """Which of the inputs of a word x has first, second, ..."""
        begin = [word * self.bits + bit for word in range(self.words) for bit in range(0, 32, self.x_bits)]
        return [bit % 16 // self.bits * 2 + bit // 16 for bit in begin]

    def begin(self, builder: ir.IRBuilder, places: Places) -> ir.Value:
        return everywhere(builder, read(builder, places.origin, I32))

    def part(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        mask = sum((2**self.bits - 1) << bit for bit in range(0, 32, self.x_bits))
        return [builder.and_(builder.lshr(weight, _integers(self.bits * word)), _integers(mask))]

    def spread(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [everywhere(builder, word)]

    def added(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if self.x_bits == 8:
            kind = ir.FunctionType(INTEGERS, [INTEGERS] * 3)
            product = declared(builder.module, "llvm.x86.avx512.vpdpbusd.512", kind)
            return builder.call(product, [total, *weight, *x])
        # LLVM knows this as one instruction
        products = builder.mul(*(builder.sext(builder.bitcast(factor, SHORTS), WIDE) for factor in (*x, *weight)))
        undefined = ir.Constant(WIDE, ir.Undefined)
        halves = [ir.Constant(INTEGERS, list(range(begin, 2 * LANES, 2))) for begin in (0, 1)]
        return builder.add(total, builder.add(*(builder.shuffle_vector(products, undefined, half) for half in halves)))

    def end(self, builder: ir.IRBuilder, total: ir.Value, places: Places) -> None:
        x_scale = everywhere(builder, read(builder, at(builder, places.origin, WORD), F32))
        scaled = builder.fmul(builder.sitofp(total, FLOATS), x_scale)
        write(
            builder,
            fma(builder, scaled, read(builder, places.scales, FLOATS), read(builder, places.y, FLOATS)),
            places.y,
        )


def by_bytes() -> bool:
    """Whether this CPU multiplies and adds up four bytes at a time."""
    return "avx512vnni" in features()


def _with_products(builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
    for one, other in zip(x, weight, strict=True):
        total = fma(builder, one, other, total)
    return total


def _integers(value: int) -> ir.Constant:
    return ir.Constant(INTEGERS, [value] * LANES)
