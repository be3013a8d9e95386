"""Rows of a large table, as float32."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, Lying, add_handler
from eagle_jax.kernels.native.code import I32, I64, WORD, at, counting, i64, read, smaller, write
from eagle_jax.kernels.native.threads import Phase, share

NAME = "eagle_jax_rows"
TOGETHER = 16  # rows that are taken in a task


def rows(strips: Float[Array, "s _ _"], indices: Int[Array, "n"]) -> Float[Array, "n i"]:
    """Rows of a table, one for each index of 32 bits; beyond the strips is the last.

    Args:
        strips: `[out / w, in / 2, 2 w]` of bfloat16 or `[out / w, in, w]` of float32, as `products.product` has them.
    """
    pairs = strips.dtype == jnp.bfloat16
    made = jax.ShapeDtypeStruct((len(indices), strips.shape[1] * (1 + pairs)), jnp.float32)
    return jax.ffi.ffi_call(NAME, made, vmap_method="sequential")(strips, indices, jnp.int32(pairs))


def names() -> list[str]:
    """Of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, _body, arguments=3)


class Table(NamedTuple):
    """A table in strips.

    Attributes:
        data: its address.
        number, width, steps: of the strips, and of each the outputs and the steps.
        pairs: whether a word holds two inputs, of bfloat16; else it is a float32.
    """

    data: ir.Value
    number: ir.Value
    width: ir.Value
    steps: ir.Value
    pairs: ir.Value

    @staticmethod
    def of(builder: ir.IRBuilder, strips: Lying, pairs: Lying) -> "Table":
        """That of an argument, and of one that is 1 of bfloat16 and 0 of float32."""
        pairs = builder.icmp_unsigned("!=", read(builder, pairs.data, I32), ir.Constant(I32, 0))
        width = builder.lshr(strips.size(2), builder.zext(pairs, I64))
        return Table(strips.data, strips.size(0), width, strips.size(1), pairs)

    def take(self, builder: ir.IRBuilder, index: ir.Value, to: ir.Value) -> None:
        """Writes a row as float32; the last one for an index beyond the table."""
        last = builder.sub(builder.mul(self.number, self.width), i64(1))
        index = smaller(builder, index, last)  # one below 0 is larger than all, without its sign
        strip, output = builder.udiv(index, self.width), builder.urem(index, self.width)
        line = builder.mul(self.width, i64(WORD))
        first = at(builder, at(builder, self.data, strip, builder.mul(self.steps, line)), output, WORD)
        with builder.if_else(self.pairs) as (two, one):
            with two, counting(builder, self.steps) as step:
                pair, here = read(builder, at(builder, first, step, line), I32), at(builder, to, step, 2 * WORD)
                # a bfloat16 is the upper half of a float32
                write(builder, builder.shl(pair, ir.Constant(I32, 16)), here)
                write(builder, builder.and_(pair, ir.Constant(I32, -(2**16))), at(builder, here, WORD))
            with one, counting(builder, self.steps) as step:
                write(builder, read(builder, at(builder, first, step, line), I32), at(builder, to, step, WORD))


class _Known(NamedTuple):
    """What tasks know: the table, addresses, and how many numbers a row has and indices there are."""

    table: Table
    indices: ir.Value
    made: ir.Value
    size: ir.Value
    count: ir.Value


def _body(call: Call) -> None:
    builder, (strips, indices, pairs), (made,) = call.builder, call.arguments, call.results
    table, count = Table.of(builder, strips, pairs), indices.size(0)
    known = _Known(table, indices.data, made.data, made.size(1), count)
    tasks = builder.udiv(builder.add(count, i64(TOGETHER - 1)), i64(TOGETHER))
    share(call, [Phase(tasks, _some)], builder.mul(count, table.steps), known)


def _some(builder: ir.IRBuilder, task: ir.Value, known: _Known) -> None:
    """`TOGETHER` rows."""
    begin = builder.mul(task, i64(TOGETHER))
    with counting(builder, smaller(builder, known.count, builder.add(begin, i64(TOGETHER))), begin) as row:
        index = builder.sext(read(builder, at(builder, known.indices, row, WORD), I32), I64)
        known.table.take(builder, index, at(builder, known.made, row, builder.mul(known.size, i64(WORD))))
