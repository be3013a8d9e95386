"""Arithmetic of the matrix products with float weights: float32, pairs of bfloat16.

A vector of weights has 16 words of 32 bits, one for each output; a word holds 1 float32 or 2 bfloat16 inputs.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses
from eagle_jax.ops.cpu.code import (
    FLOATS,
    I16,
    INTEGERS,
    LANES,
    PAIRS,
    declare,
    features,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma

BF16_DOT = "avx512bf16"
Factors = list[ir.Value]  # vectors, multiplied pairwise with those of the other operand


@runtime_checkable
class Arithmetic(Protocol):
    """The kind of multiply-accumulate for words of x and w."""

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
    def joined(self) -> int:
        """Words that one call of `accumulate` gets the factors of."""

    @property
    def rereads(self) -> bool:
        """Whether a vector of weights is read again for its next words, so that it takes no register meanwhile."""

    @property
    def direct(self) -> bool:
        """Whether words are multiplied as they are in memory, so that unpacking takes no registers."""

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        """Returns the initial value of the sums."""

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        """Returns the part of a vector of weights that is multiplied with word number `word` of x."""

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        """Returns a word of x in every lane."""

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        """Adds the products to `total`."""

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
    words = joined = 1
    rereads = False
    direct = True
    size = 4
    inputs = 1

    @property
    def name(self) -> str:
        return "adding" if self.accumulates else "single"

    def convert(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """Converts 16 elements of x in their memory format."""
        return floats

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return read(builder, addresses.y, FLOATS) if self.accumulates else ir.Constant(FLOATS, None)

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return [builder.bitcast(weight, FLOATS)]

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [builder.bitcast(splat(builder, word), FLOATS)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        return fma_all(builder, total, x, weight)

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        write(builder, total, addresses.y)


@dataclasses.dataclass(frozen=True)
class BFloat16Arithmetic:
    """Two bfloat16 in a word, accumulated in float32."""

    name = "paired"
    accumulator_type = FLOATS
    words = joined = 1
    rereads = False
    size = 2
    inputs = 2

    @property
    def direct(self) -> bool:
        return BF16_DOT in features()

    def convert(self, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
        """Converts 16 elements of x in their memory format, rounded to the nearest bfloat16, ties to even."""
        bits = builder.bitcast(floats, INTEGERS)
        odd = builder.and_(builder.lshr(bits, integers(16)), integers(1))
        nearest = builder.lshr(builder.add(bits, builder.add(odd, integers(2**15 - 1))), integers(16))
        is_nan = builder.fcmp_unordered("uno", floats, floats)
        return builder.trunc(builder.select(is_nan, integers(0x7FC0), nearest), ir.VectorType(I16, LANES))

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return ir.Constant(FLOATS, None)

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        return self._factors(builder, weight)

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return self._factors(builder, splat(builder, word))

    def _factors(self, builder: ir.IRBuilder, words: ir.Value) -> Factors:
        """Returns the words where the CPU multiplies bfloat16 pairs; else both halves, widened to float32."""
        if BF16_DOT in features():
            return [builder.bitcast(words, PAIRS)]
        low, high = builder.shl(words, integers(16)), builder.and_(words, integers(-(2**16)))
        return [builder.bitcast(low, FLOATS), builder.bitcast(high, FLOATS)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if BF16_DOT not in features():
            return fma_all(builder, total, x, weight)
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


def fma_all(builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
    for a, b in zip(x, weight, strict=True):
        total = fma(builder, a, b, total)
    return total


def integers(value: int) -> ir.Constant:
    return ir.Constant(INTEGERS, [value] * LANES)
