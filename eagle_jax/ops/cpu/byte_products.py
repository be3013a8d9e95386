"""Byte products with 32-bit sums: one class for each CPU instruction set.

A vector of weights, like one of a row, has four bytes in each of its 16 words. Bytes of a row are from -127 to 127. All
sums are exact, so products have the same bits with any of these.
"""

import dataclasses
from collections.abc import Callable

from llvmlite import ir

from eagle_jax.ops.cpu.code import I8, I16, I32, VECTOR, declare, features

MAX_SMALL = 15
Instruction = Callable[..., ir.Value]


@dataclasses.dataclass(frozen=True)
class DotProducts:
    """An instruction that multiplies bytes and adds four products to each sum.

    Attributes:
        needs: what the CPU has to have, by LLVM's names.
        name: name of LLVM's intrinsic.
        size: bytes of a register.
        signed: weights are from -128 to 127; else from 0 to 255.
        small: it multiplies weights from 0 to `MAX_SMALL` alone.
        joined: words of a row, and as many vectors of weights, that one call of `accumulate` multiplies pairwise.
    """

    needs: frozenset[str]
    name: str
    size: int
    signed: bool
    small = False
    joined = 1

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: list[ir.Value], weight: list[ir.Value]) -> ir.Value:
        """Adds the products to `total`, all of them vectors of words."""
        words = ir.VectorType(I32, self.size // 4)
        factor = ir.VectorType(I8, self.size) if self.signed else words
        dot = declare(builder.module, self.name, ir.FunctionType(words, [words, factor, factor]))

        def multiply(total: ir.Value, weight: ir.Value, x: ir.Value) -> ir.Value:
            return builder.call(dot, [total, *(builder.bitcast(value, factor) for value in (weight, x))])

        return in_registers(builder, self.size, multiply, total, *weight, *x)


@dataclasses.dataclass(frozen=True)
class PairProducts:
    """Products of bytes without a sign and bytes with one, by AVX2, in pairs whose sums have 16 bits.

    Attributes as those of `DotProducts`, but
        signed: the sign of a weight goes to the number that it is multiplied with, so that a pair's sum is 32512 at
            most. Else weights are small, and two pairs have a sum of 7620 at most.
    """

    signed: bool
    needs = frozenset({"avx2"})

    @property
    def small(self) -> bool:
        return not self.signed

    @property
    def joined(self) -> int:
        return 1 if self.signed else 2

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: list[ir.Value], weight: list[ir.Value]) -> ir.Value:
        pairs = [in_registers(builder, 32, self._multiplier(builder), *pair) for pair in zip(x, weight, strict=True)]
        shorts = pairs[0] if self.signed else builder.add(*pairs)
        return builder.add(total, in_registers(builder, 32, _pair_sums(builder), shorts))

    def _multiplier(self, builder: ir.IRBuilder) -> Instruction:
        kind, shorts, module = ir.VectorType(I8, 32), ir.VectorType(I16, 16), builder.module
        multiply = declare(module, "llvm.x86.avx2.pmadd.ub.sw", ir.FunctionType(shorts, [kind, kind]))
        sign = declare(module, "llvm.x86.avx2.psign.b", ir.FunctionType(kind, [kind, kind]))
        absolute = declare(module, "llvm.abs.v32i8", ir.FunctionType(kind, [kind, ir.IntType(1)]))

        def products(x: ir.Value, weight: ir.Value) -> ir.Value:
            x, weight = builder.bitcast(x, kind), builder.bitcast(weight, kind)
            if self.signed:
                x = builder.call(sign, [x, weight])
                weight = builder.call(absolute, [weight, ir.Constant(ir.IntType(1), 0)])
            return builder.call(multiply, [weight, x])

        return products


def _pair_sums(builder: ir.IRBuilder) -> Instruction:
    """Adds two neighbours of 16 bits each."""
    shorts, words = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    multiply = declare(builder.module, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(words, [shorts, shorts]))
    return lambda pairs: builder.call(multiply, [pairs, ir.Constant(shorts, [1] * 16)])


ByteProducts = DotProducts | PairProducts
WAYS: tuple[ByteProducts, ...] = (
    DotProducts(frozenset({"avx512vnni"}), "llvm.x86.avx512.vpdpbusd.512", 64, signed=False),
    DotProducts(frozenset({"avxvnni"}), "llvm.x86.avx512.vpdpbusd.256", 32, signed=False),
    DotProducts(frozenset({"dotprod"}), "llvm.aarch64.neon.sdot.v4i32.v16i8", 16, signed=True),
    PairProducts(signed=False),
    PairProducts(signed=True),
)


def byte_products(small: bool) -> ByteProducts | None:
    """Returns this CPU's best way to multiply bytes, or None.

    Args:
        small: weights are from 0 to `MAX_SMALL`.
    """
    fitting = (way for way in WAYS if way.needs <= features() and (small or not way.small))
    return next(fitting, None)


def in_registers(builder: ir.IRBuilder, size: int, instruction: Instruction, *vectors: ir.Value) -> ir.Value:
    """Applies `instruction` to each register of `size` bytes of vectors of 64 bytes, and joins the results."""
    results = [
        instruction(*(_part(builder, vector, register, VECTOR // size) for vector in vectors))
        for register in range(VECTOR // size)
    ]
    while len(results) > 1:
        lanes = ir.Constant(ir.VectorType(I32, 2 * results[0].type.count), list(range(2 * results[0].type.count)))
        results = [builder.shuffle_vector(*results[i : i + 2], lanes) for i in range(0, len(results), 2)]
    return results[0]


def _part(builder: ir.IRBuilder, vector: ir.Value, index: int, parts: int) -> ir.Value:
    lanes = vector.type.count // parts
    places = ir.Constant(ir.VectorType(I32, lanes), list(range(index * lanes, (index + 1) * lanes)))
    return vector if parts == 1 else builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)
