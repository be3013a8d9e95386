"""Rows of a large table of bfloat16, as float32."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import I32, I64, WORD, at, counting, i64, read, smaller, write
from eagle_jax.kernels.native.threads import Phase, share

NAME = "eagle_jax_rows"
TOGETHER = 16  # rows that are taken in a task


def rows(strips: Float[Array, "s _ _"], indices: Int[Array, "n"]) -> Float[Array, "n i"]:
    """Rows of a table, one for each index of 32 bits; beyond the strips is the last.

    Args:
        strips: `[out / w, in / 2, 2 w]`, as `products.product` has them.
    """
    made = jax.ShapeDtypeStruct((len(indices), strips.shape[1] * 2), jnp.float32)
    return jax.ffi.ffi_call(NAME, made, vmap_method="sequential")(strips, indices)


def names() -> list[str]:
    """Of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, _body, arguments=2)


class _Known(NamedTuple):
    """What tasks know: addresses, and how many strips there are, words and steps in each, and indices."""

    strips: ir.Value
    indices: ir.Value
    made: ir.Value
    number: ir.Value
    width: ir.Value
    steps: ir.Value
    count: ir.Value


def _body(call: Call) -> None:
    builder, (strips, indices), (made,) = call.builder, call.arguments, call.results
    width, count = builder.lshr(strips.size(2), i64(1)), indices.size(0)
    known = _Known(strips.data, indices.data, made.data, strips.size(0), width, strips.size(1), count)
    tasks = builder.udiv(builder.add(count, i64(TOGETHER - 1)), i64(TOGETHER))
    share(call, [Phase(tasks, _some)], builder.mul(count, known.steps), known)


def _some(builder: ir.IRBuilder, task: ir.Value, known: _Known) -> None:
    """`TOGETHER` rows."""
    begin, line = builder.mul(task, i64(TOGETHER)), builder.mul(known.width, i64(WORD))
    last = builder.sub(builder.mul(known.number, known.width), i64(1))
    with counting(builder, smaller(builder, known.count, builder.add(begin, i64(TOGETHER))), begin) as row:
        index = builder.sext(read(builder, at(builder, known.indices, row, WORD), I32), I64)
        index = smaller(builder, index, last)  # one below 0 is larger than all, without its sign
        strip, output = builder.udiv(index, known.width), builder.urem(index, known.width)
        first = at(builder, at(builder, known.strips, strip, builder.mul(known.steps, line)), output, WORD)
        to = at(builder, known.made, row, builder.mul(known.steps, i64(2 * WORD)))
        with counting(builder, known.steps) as step:
            pair, here = read(builder, at(builder, first, step, line), I32), at(builder, to, step, 2 * WORD)
            # a bfloat16 is the upper half of a float32
            write(builder, builder.shl(pair, ir.Constant(I32, 16)), here)
            write(builder, builder.and_(pair, ir.Constant(I32, -(2**16))), at(builder, here, WORD))
