"""Arithmetic of the matrix products with quantized weights.

A vector of weights has 16 words of 32 bits, one for each output; a word holds 4 codes of 8 bits or 8 of 4.
"""

import dataclasses
import functools

from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses
from eagle_jax.ops.cpu.arithmetic import Factors, fma_all, integers
from eagle_jax.ops.cpu.byte_products import MAX_SMALL, ByteProducts, byte_products, in_registers
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    INTEGERS,
    LANES,
    VECTOR,
    WORD,
    at,
    declare,
    features,
    has_amx,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma
from eagle_jax.ops.cpu.product_kind import TABLES, ProductKind
from eagle_jax.ops.quantized import E4M3

SHORTS, WIDE = ir.VectorType(I16, 2 * LANES), ir.VectorType(I32, 2 * LANES)
BYTES, HALVES = ir.VectorType(I8, VECTOR), ir.VectorType(ir.HalfType(), LANES)


def arithmetic_of(kind: ProductKind) -> "QuantizedArithmetic | Float8Arithmetic":
    """Returns the arithmetic of a kind of products on this CPU."""
    return Float8Arithmetic(kind) if kind.levels == E4M3 else QuantizedArithmetic(kind, in_bytes=has_amx())


@dataclasses.dataclass(frozen=True)
class QuantizedArithmetic:
    """Quantized weights with quantized x; sums are int32, and their scaled values are added to y in float32.

    x has 8 bits, or 16 as `256 * high + low`, bytes from -128 to 127.

    A word of weights has `32 / bits` unsigned codes: number 2j begins at bit `j * bits`, number 2j + 1 at
    `16 + j * bits`. So shift and mask give integers as wide as those of x, which CPUs multiply and accumulate in one
    instruction. Indices into a table of levels are looked up in between.

    Attributes:
        kind: kind of the products; rows of 8 bits need `has_byte_products`.
        in_bytes: a row of x of 16 bits is that of its low bytes, then that of its high ones, as AMX multiplies them.
    """

    kind: ProductKind
    in_bytes: bool = False
    accumulator_type = INTEGERS
    direct = False

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def bits(self) -> int:
        """Bits of a weight's code."""
        return self.kind.bits

    @property
    def inputs(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def highest(self) -> int:
        """The largest value of x."""
        return 127 if self.kind.x_bits == 8 else 127 * 256 + 127

    @property
    def planes(self) -> int:
        """Rows of bytes that a row of x consists of, or 1."""
        return self.kind.x_bits // 8 if self.in_bytes else 1

    @property
    def part_bits(self) -> int:
        """Bits of what is multiplied at a time."""
        return self.kind.x_bits // self.planes

    @property
    def words(self) -> int:
        return self.part_bits // self.bits

    @property
    def order(self) -> list[int]:
        """Order of the inputs of a word in x."""
        initial = [word * self.bits + bit for word in range(self.words) for bit in range(0, 32, self.part_bits)]
        return [bit % 16 // self.bits * 2 + bit // 16 for bit in initial]

    def convert(self, builder: ir.IRBuilder, codes: ir.Value) -> list[ir.Value]:
        """Converts 16 elements of x in their memory format, in each plane."""
        kind = ir.VectorType(ir.IntType(self.part_bits), LANES)
        lanes = [word * self.inputs + input_ for word in range(LANES // self.inputs) for input_ in self.order]
        high = builder.ashr(builder.add(codes, integers(128)), integers(8))
        parts = [builder.trunc(part, kind) for part in (codes, high)[: self.planes]]
        undefined = ir.Constant(kind, ir.Undefined)
        return [builder.shuffle_vector(part, undefined, ir.Constant(INTEGERS, lanes)) for part in parts]

    @property
    def _bytes(self) -> ByteProducts | None:
        """The byte product for 8-bit rows; None for other rows."""
        return byte_products(_is_small(self.kind)) if self.kind.x_bits == 8 else None

    @property
    def joined(self) -> int:
        return 1 if self._bytes is None else self._bytes.joined

    @property
    def rereads(self) -> bool:
        """Whether codes are read again for each row: with 16 registers LLVM would spill sums otherwise."""
        return self._bytes is not None and "avx512f" not in features()

    @property
    def _offset(self) -> int:
        """Number that is subtracted from codes before they are multiplied as signed bytes."""
        return 128 if self._bytes and self._bytes.signed and not _is_small(self.kind) else 0

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        """Returns the terms of the offset and the zero point, by the sum of the row's codes."""
        if (factor := self._offset - self.kind.zero_point) == 0:
            return ir.Constant(INTEGERS, None)
        return splat(builder, builder.mul(read(builder, addresses.origin, I32), ir.Constant(I32, factor)))

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        mask = sum((2**self.bits - 1) << bit for bit in range(0, 32, self.part_bits))
        codes = builder.and_(builder.lshr(weight, integers(self.bits * word)), integers(mask))
        if self.kind.levels not in TABLES:
            return [builder.xor(codes, integers(0x01010101 * self._offset)) if self._offset else codes]
        levels = _looked_up(builder, codes, [level - self._offset for level in self.kind.table])
        bytes_ = sum(255 << bit for bit in range(0, 32, self.part_bits))  # a byte that is no code is index 0
        return [levels if bytes_ == 2**32 - 1 else builder.and_(levels, integers(bytes_))]

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [splat(builder, word)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        if self._bytes:
            return self._bytes.accumulate(builder, total, x, weight)
        # LLVM knows this as one instruction
        products = builder.mul(*(builder.sext(builder.bitcast(factor, SHORTS), WIDE) for factor in (*x, *weight)))
        undefined = ir.Constant(WIDE, ir.Undefined)
        halves = [ir.Constant(INTEGERS, list(range(initial, 2 * LANES, 2))) for initial in (0, 1)]
        return builder.add(total, builder.add(*(builder.shuffle_vector(products, undefined, half) for half in halves)))

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        x_scale = splat(builder, read(builder, at(builder, addresses.origin, WORD), F32))
        scaled = builder.fmul(builder.sitofp(total, FLOATS), x_scale)
        y = fma(builder, scaled, _scales(builder, addresses, self.kind, 0), read(builder, addresses.y, FLOATS))
        if self.kind.has_minima:
            total_of_x = builder.sitofp(read(builder, addresses.origin, I32), F32)
            x_sum = builder.fmul(splat(builder, total_of_x), x_scale)
            y = fma(builder, x_sum, _scales(builder, addresses, self.kind, 1), y)
        write(builder, y, addresses.y)


@dataclasses.dataclass(frozen=True)
class Float8Arithmetic:
    """Weights of float8_e4m3 with x in float32; the sums of a block, in float32, are scaled and added to y.

    The bits of an e4m3 are a float16 that is `FLOAT8_FACTOR` times smaller, denormals included, and CPUs widen that in
    one instruction; the scales make up for the factor.

    Attributes:
        kind: kind of the products.
    """

    kind: ProductKind
    accumulator_type = FLOATS
    direct = False
    planes = joined = 1
    rereads = False
    inputs = words = 4
    part_bits = 32

    @property
    def name(self) -> str:
        return self.kind.name

    def initial(self, builder: ir.IRBuilder, addresses: Addresses) -> ir.Value:
        return ir.Constant(FLOATS, None)

    def weight_factors(self, builder: ir.IRBuilder, weight: ir.Value, word: int) -> Factors:
        code = builder.lshr(weight, integers(word // 2 * 8 + word % 2 * 16))
        magnitude = builder.shl(builder.and_(code, integers(0x7F)), integers(7))
        sign = builder.shl(builder.and_(code, integers(0x80)), integers(8))
        bits = builder.trunc(builder.or_(magnitude, sign), ir.VectorType(I16, LANES))
        return [builder.fpext(builder.bitcast(bits, HALVES), FLOATS)]

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value) -> Factors:
        return [builder.bitcast(splat(builder, word), FLOATS)]

    def accumulate(self, builder: ir.IRBuilder, total: ir.Value, x: Factors, weight: Factors) -> ir.Value:
        return fma_all(builder, total, x, weight)

    def store(self, builder: ir.IRBuilder, total: ir.Value, addresses: Addresses) -> None:
        scales = _scales(builder, addresses, self.kind, 0)
        write(builder, fma(builder, total, scales, read(builder, addresses.y, FLOATS)), addresses.y)


def scale_bytes(kind: ProductKind) -> int:
    """Returns the number of bytes of the scales, and minima, of 16 outputs."""
    return kind.scale_parts * LANES * (2 if kind.scale_dtype == "float16" else WORD)


def _is_small(kind: ProductKind) -> bool:
    """Returns whether bytes of codes are `MAX_SMALL` at most."""
    return 2**kind.bits - 1 <= MAX_SMALL and kind.levels not in TABLES


def has_byte_products() -> bool:
    """Returns whether this CPU multiplies bytes."""
    return byte_products(small=False) is not None


def has_byte_shuffles() -> bool:
    """Returns whether this CPU looks up bytes in a table of 16."""
    return bool({"avx2", "neon"} & features())


def _scales(builder: ir.IRBuilder, addresses: Addresses, kind: ProductKind, part: int) -> ir.Value:
    """Returns the scales (part 0) or minima (part 1) of 16 outputs."""
    address = at(builder, addresses.scales, part, scale_bytes(kind) // kind.scale_parts)
    if kind.scale_dtype == "float16":
        return builder.fpext(read(builder, address, HALVES), FLOATS)
    return read(builder, address, FLOATS)


def _looked_up(builder: ir.IRBuilder, indices: ir.Value, table: list[int]) -> ir.Value:
    """Returns the entries of a table of 16 bytes, by the bytes of a vector."""
    x86 = ("llvm.x86.avx512.pshuf.b.512", 64) if "avx512bw" in features() else ("llvm.x86.avx2.pshuf.b", 32)
    name, size = ("llvm.aarch64.neon.tbl1.v16i8", 16) if "neon" in features() else x86
    kind = ir.VectorType(I8, size)
    lookup = declare(builder.module, name, ir.FunctionType(kind, [kind, kind]))
    entries = ir.Constant(kind, [entry - 256 * (entry > 127) for entry in table] * (size // 16))
    look_up = functools.partial(_call, builder, lookup, entries)
    return builder.bitcast(in_registers(builder, size, look_up, builder.bitcast(indices, BYTES)), INTEGERS)


def _call(builder: ir.IRBuilder, function: ir.Function, *arguments: ir.Value) -> ir.Value:
    return builder.call(function, arguments)
