"""Arithmetic of the matrix products: float32, pairs of bfloat16, quantized weights.

A vector of weights has 16 words of 32 bits, one for each output; a word holds 1 float32,
2 bfloat16, 4 int8 or 8 int4 inputs.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses
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
    declare,
    features,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma

BF16_DOT = "avx512bf16"
SHORTS, WIDE = ir.VectorType(I16, 2 * LANES), ir.VectorType(I32, 2 * LANES)
Factors = list[ir.Value]  # vectors, multiplied pairwise with those of the other operand


@runtime_checkable
class Arithmetic(Protocol):
    """How the words of x and w are multiplied and accumulated."""

    @property
    def name(self) -> str:
        """Part of the names of generated functions."""

    @property
    def accumulator_type(self) -> ir.Type:
        """LLVM type of 16 sums."""

    @property
    def words(self) -> int:
        """Words of a row of x that one vector of weights is multiplied with."""

    @property
    def direct(self) -> bool:
        """Whether words are multiplied as they are in memory, so that unpacking takes no registers."""

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        """Initial value of the sums."""

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        """The part of a vector of weights that is multiplied with word number `word` of x."""

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        """A word of x in every lane."""

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        """`total` plus the products."""

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        """Writes the outputs."""


@dataclasses.dataclass(frozen=True)
class Float32Arithmetic:
    """float32.

    Attributes:
        accumulates: the products are added to y.
        size: bytes of an element of x.
        inputs: elements in a word.
    """

    accumulates: bool = False
    accumulator_type = FLOATS
    words = 1
    direct = True
    size = 4
    inputs = 1

    @property
    def name(self) -> str:
        return "adding" if self.accumulates else "single"

    def convert(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """16 elements of x in their memory format."""
        return floats

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return read(builder, addresses.y, FLOATS) if self.accumulates else ir.Constant(FLOATS, None)

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return [builder.bitcast(weight, FLOATS)]

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [builder.bitcast(splat(builder, word), FLOATS)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        return _fma_all(builder, total, x, weight)

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        write(builder, total, addresses.y)


@dataclasses.dataclass(frozen=True)
class BFloat16Arithmetic:
    """Two bfloat16 in a word, accumulated in float32."""

    name = "paired"
    accumulator_type = FLOATS
    words = 1
    size = 2
    inputs = 2

    @property
    def direct(self) -> bool:
        return BF16_DOT in features()

    def convert(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """16 elements of x in their memory format, rounded to the nearest bfloat16, ties to even."""
        bits = builder.bitcast(floats, INTEGERS)
        odd = builder.and_(builder.lshr(bits, _integers(16)), _integers(1))
        nearest = builder.lshr(builder.add(bits, builder.add(odd, _integers(2**15 - 1))), _integers(16))
        is_nan = builder.fcmp_unordered("uno", floats, floats)
        return builder.trunc(builder.select(is_nan, _integers(0x7FC0), nearest), ir.VectorType(I16, LANES))

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return ir.Constant(FLOATS, None)

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return self._factors(builder, weight)

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return self._factors(builder, splat(builder, word))

    def _factors(self, builder: ir.IRBuilder, words: ir.Value) -> Factors:
        """The words themselves where the CPU multiplies bfloat16 pairs; else both halves, widened to float32."""
        if BF16_DOT in features():
            return [builder.bitcast(words, PAIRS)]
        low, high = builder.shl(words, _integers(16)), builder.and_(words, _integers(-(2**16)))
        return [builder.bitcast(low, FLOATS), builder.bitcast(high, FLOATS)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if BF16_DOT not in features():
            return _fma_all(builder, total, x, weight)
        kind = ir.FunctionType(FLOATS, [FLOATS, PAIRS, PAIRS])
        product = declare(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", kind)
        return builder.call(product, [total, *x, *weight])

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        write(builder, total, addresses.y)


FloatArithmetic = Float32Arithmetic | BFloat16Arithmetic
FLOATING: dict[np.dtype, FloatArithmetic] = {
    jnp.dtype(jnp.float32): Float32Arithmetic(),
    jnp.dtype(jnp.bfloat16): BFloat16Arithmetic(),
}
"""Arithmetic by dtype of the weights."""


@dataclasses.dataclass(frozen=True)
class QuantizedArithmetic:
    """Quantized weights with quantized x; sums are int32, and their scaled values are added to y in float32.

    x has 8 bits, or 16 as `256 * high + low`, bytes from -128 to 127.

    A word of weights has `32 / bits` unsigned codes: number 2j begins at bit `j * bits`, number 2j + 1 at
    `16 + j * bits`. So shift and mask give integers as wide as those of x, which CPUs multiply and accumulate in one
    instruction.

    Attributes:
        bits: of a weight, 8 or 4.
        x_bits: of an element of x: 16, or 8 if `has_byte_products`.
        in_bytes: a row of x of 16 bits is that of its low bytes, then that of its high ones, as AMX multiplies them.
    """

    bits: int
    x_bits: int
    in_bytes: bool = False
    accumulator_type = INTEGERS
    direct = False

    @property
    def name(self) -> str:
        return f"int{self.bits}_by_int{self.x_bits}"

    @property
    def inputs(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def highest(self) -> int:
        """The largest value of x."""
        return 127 if self.x_bits == 8 else 127 * 256 + 127

    @property
    def planes(self) -> int:
        """Rows of bytes that a row of x consists of, or 1."""
        return self.x_bits // 8 if self.in_bytes else 1

    @property
    def part_bits(self) -> int:
        """Bits of what is multiplied at a time."""
        return self.x_bits // self.planes

    @property
    def words(self) -> int:
        return self.part_bits // self.bits

    @property
    def order(self) -> list[int]:
        """Order of the inputs of a word in x."""
        initial = [word * self.bits + bit for word in range(self.words) for bit in range(0, 32, self.part_bits)]
        return [bit % 16 // self.bits * 2 + bit // 16 for bit in initial]

    def convert(self, builder: ir.IRBuilder, codes: ir.Value) -> list[ir.Value]:
        """16 elements of x in their memory format, in each plane."""
        kind = ir.VectorType(ir.IntType(self.part_bits), LANES)
        lanes = [word * self.inputs + input_ for word in range(LANES // self.inputs) for input_ in self.order]
        high = builder.ashr(builder.add(codes, _integers(128)), _integers(8))
        parts = [builder.trunc(part, kind) for part in (codes, high)[: self.planes]]
        undefined = ir.Constant(kind, ir.Undefined)
        return [builder.shuffle_vector(part, undefined, ir.Constant(INTEGERS, lanes)) for part in parts]

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return splat(builder, read(builder, addresses.origin, I32))

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        mask = sum((2**self.bits - 1) << bit for bit in range(0, 32, self.part_bits))
        return [builder.and_(builder.lshr(weight, _integers(self.bits * word)), _integers(mask))]

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [splat(builder, word)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if self.x_bits == 8:
            kind = ir.FunctionType(INTEGERS, [INTEGERS] * 3)
            product = declare(builder.module, "llvm.x86.avx512.vpdpbusd.512", kind)
            return builder.call(product, [total, *weight, *x])
        # LLVM knows this as one instruction
        products = builder.mul(*(builder.sext(builder.bitcast(factor, SHORTS), WIDE) for factor in (*x, *weight)))
        undefined = ir.Constant(WIDE, ir.Undefined)
        halves = [ir.Constant(INTEGERS, list(range(initial, 2 * LANES, 2))) for initial in (0, 1)]
        return builder.add(total, builder.add(*(builder.shuffle_vector(products, undefined, half) for half in halves)))

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        x_scale = splat(builder, read(builder, at(builder, addresses.origin, WORD), F32))
        scaled = builder.fmul(builder.sitofp(total, FLOATS), x_scale)
        write(
            builder,
            fma(builder, scaled, read(builder, addresses.scales, FLOATS), read(builder, addresses.y, FLOATS)),
            addresses.y,
        )


def has_byte_products() -> bool:
    """Whether this CPU multiplies and accumulates four bytes at a time (AVX-512 VNNI)."""
    return "avx512vnni" in features()


def _fma_all(builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
    for one, other in zip(x, weight, strict=True):
        total = fma(builder, one, other, total)
    return total


def _integers(value: int) -> ir.Constant:
    return ir.Constant(INTEGERS, [value] * LANES)
