"""The requirements of a handler on its buffers, and code that checks them before any memory access."""

import ast
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from llvmlite import ir

from eagle_jax.ops.cpu.code import I8, I32, I64, POINTER, at, i64, read
from eagle_jax.ops.cpu.ffi_abi import DTYPES, ENUMS, OFFSETS

FRAME, BUFFER = OFFSETS["XLA_FFI_CallFrame"], OFFSETS["XLA_FFI_Buffer"]
ARGS, RETS = OFFSETS["XLA_FFI_Args"], OFFSETS["XLA_FFI_Rets"]


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument or a result that has the type that the signature gives it.

    Attributes:
        data: address of its elements.
        dims: lengths along its axes.
    """

    data: ir.Value
    dims: tuple[ir.Value, ...]

    def size(self, axis: int) -> ir.Value:
        """Returns the length along an axis."""
        return self.dims[axis]


@dataclasses.dataclass(frozen=True)
class Signature:
    """Types of a handler's buffers, and how their dimensions depend on each other.

        Signature(
            arguments={"x": "float32[r, i]", "panels": "float32[s, i, w]"},
            results={"y": "float32[r, o]"},
            relations=["w % 16 == 0", "o == s * w"],
        )

    Attributes:
        arguments, results: names and types, in order. A letter is the same length wherever it stands.
        relations: Python comparisons of lengths, checked in order; all lengths are at least 0, and a divisor that is no
            number has to be checked to be positive before.
    """

    arguments: Mapping[str, str]
    results: Mapping[str, str]
    relations: Sequence[str] = ()

    def describe(self, relation: str) -> str:
        """Returns the relation, and the buffers whose lengths it compares."""
        names = set(re.findall(r"[a-z]\w*", relation))
        types = ({**self.arguments, **self.results}).items()
        involved = [f"{name} {type_}" for name, type_ in types if names & set(_parsed(type_)[1])]
        return f"expected {relation} of {', '.join(involved)}"


class Checks:
    """Builds the checks of a handler: where one fails, the handler branches to `failed` with a message.

    Args:
        builder: builder of the handler; stands after the checks once they are built.
        name: name of the handler.
    """

    def __init__(self, builder: ir.IRBuilder, name: str):
        self.builder, self.name = builder, name
        self.failed = builder.append_basic_block("failed")
        with builder.goto_block(self.failed):
            self.message = builder.phi(POINTER)

    def buffers(self, frame: ir.Value, signature: Signature) -> tuple[list[Buffer], list[Buffer]]:
        """Returns the arguments and results, after all checks."""
        lengths: dict[str, ir.Value] = {}
        kinds = (
            ("argument", ARGS | {"list": FRAME["args"], "buffers": ARGS["args"]}, signature.arguments),
            ("result", RETS | {"list": FRAME["rets"], "buffers": RETS["rets"]}, signature.results),
        )
        arguments, results = (self._listed(frame, *kind, lengths) for kind in kinds)
        for relation in signature.relations:
            condition, overflows = _condition(self.builder, relation, lengths)
            for overflow in overflows:
                condition = self.builder.and_(condition, self.builder.not_(overflow))
            self._require(condition, signature.describe(relation))
        return arguments, results

    def _listed(
        self, frame: ir.Value, kind: str, layout: dict[str, int], types: Mapping[str, str], lengths: dict[str, ir.Value]
    ) -> list[Buffer]:
        builder = self.builder
        start = at(builder, frame, layout["list"])
        count = read(builder, at(builder, start, layout["size"]), I64)
        self._require(builder.icmp_unsigned("==", count, i64(len(types))), f"expected {len(types)} {kind}s")
        tags, buffers = (read(builder, at(builder, start, layout[field]), POINTER) for field in ("types", "buffers"))
        buffers_ = []
        for index, (name, type_) in enumerate(types.items()):
            tag = read(builder, at(builder, tags, index, 4), I32)
            requirement = f"{kind} {name} has to be a buffer of type {type_}"
            self._require(builder.icmp_unsigned("==", tag, _i32(ENUMS["XLA_FFI_ArgType_BUFFER"])), requirement)
            buffers_.append(
                self._buffer(read(builder, at(builder, buffers, index, 8), POINTER), type_, requirement, lengths)
            )
        return buffers_

    def _buffer(self, pointer: ir.Value, type_: str, requirement: str, lengths: dict[str, ir.Value]) -> Buffer:
        builder = self.builder
        dtype, symbols = _parsed(type_)
        actual_dtype = read(builder, at(builder, pointer, BUFFER["dtype"]), I32)
        rank = read(builder, at(builder, pointer, BUFFER["rank"]), I64)
        same_dtype = builder.icmp_unsigned("==", actual_dtype, _i32(DTYPES[dtype]))
        self._require(builder.and_(same_dtype, builder.icmp_unsigned("==", rank, i64(len(symbols)))), requirement)
        dims = read(builder, at(builder, pointer, BUFFER["dims"]), POINTER)
        sizes = tuple(read(builder, at(builder, dims, axis, 8), I64) for axis in range(len(symbols)))
        wrong = i64(0)
        for symbol, size in zip(symbols, sizes, strict=True):
            expected = i64(int(symbol)) if symbol.isdigit() else lengths.setdefault(symbol, size)
            wrong = builder.or_(wrong, builder.xor(size, expected))
        if sizes:
            self._require(builder.icmp_unsigned("==", wrong, i64(0)), requirement)
        return Buffer(read(builder, at(builder, pointer, BUFFER["data"]), POINTER), sizes)

    def _require(self, condition: ir.Value, message: str) -> None:
        passed = self.builder.append_basic_block("passed")
        self.message.add_incoming(_text(self.builder.module, f"{self.name}: {message}"), self.builder.block)
        self.builder.cbranch(
            condition,
            passed,
            self.failed,
        ).set_weights([2**20, 1])
        self.builder.position_at_end(passed)


@functools.cache
def _parsed(type_: str) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the dtype, and a symbol or a number for each axis."""
    dtype, shape = type_.removesuffix("]").split("[")
    return dtype, tuple(filter(None, shape.replace(" ", "").split(",")))


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def _text(module: ir.Module, text: str) -> ir.Value:
    """Returns the address of a constant C string."""
    data = bytearray(text.encode() + b"\0")
    variable = ir.GlobalVariable(module, ir.ArrayType(I8, len(data)), module.get_unique_name("message"))
    variable.linkage, variable.global_constant = "internal", True
    variable.initializer = ir.Constant(variable.value_type, data)
    return variable


COMPARISONS = {ast.Eq: "==", ast.LtE: "<=", ast.GtE: ">="}


def _condition(
    builder: ir.IRBuilder, relation: str, lengths: Mapping[str, ir.Value]
) -> tuple[ir.Value, list[ir.Value]]:
    """Returns whether a relation holds, and bits that say whether a product in it overflowed."""
    overflows: list[ir.Value] = []

    def number(node: ast.expr) -> ir.Value:
        match node:
            case ast.Constant(value=int(value)):
                return i64(value)
            case ast.Name(id=name):
                return lengths[name]
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                product = builder.umul_with_overflow(number(left), number(right))
                overflows.append(builder.extract_value(product, 1))
                return builder.extract_value(product, 0)
            case ast.BinOp(left=left, op=operator, right=right):
                build = {ast.Add: builder.add, ast.FloorDiv: builder.udiv, ast.Mod: builder.urem}[type(operator)]
                return build(number(left), number(right))
        raise ValueError(f"{ast.unparse(node)} in {relation!r} is no length")

    def holds(node: ast.expr) -> ir.Value:
        match node:
            case ast.BoolOp(op=ast.Or(), values=values):
                return functools.reduce(builder.or_, map(holds, values))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return builder.icmp_unsigned(COMPARISONS[type(operator)], number(left), number(right))
        raise ValueError(f"{relation!r} is no comparison")

    return holds(ast.parse(relation, mode="eval").body), overflows
