"""A few rows of a large table of floats.

XLA:CPU has no gather of bfloat16: it would make float32 of the whole table first, once a call of a program.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import I32, I64, WORD, at, counting, i64, read, smaller, write
from eagle_jax.kernels.native.numbers import FLOATING, Pairs, Singles

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_rows_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_rows_bf16"}


def rows(strips: Float[Array, "s _ _"], indices: Int[Array, "n"]) -> Float[Array, "n i"]:
    """Rows of a table in strips, in float32; one that there is not is the last.

    Args:
        strips: as `products.product` has them; a table as it is, is one of strips of a single output.
    """
    numbers = FLOATING[strips.dtype]
    inputs = strips.shape[1] * WORD // numbers.size
    made = jax.ShapeDtypeStruct((len(indices), inputs), jnp.float32)
    return jax.ffi.ffi_call(NAMES[strips.dtype], made, vmap_method="sequential")(strips, indices)


def names() -> list[str]:
    """Of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for dtype, name in NAMES.items():
        add_handler(module, name, functools.partial(_body, numbers=FLOATING[dtype]), arguments=2)


def _body(call: Call, numbers: Singles | Pairs) -> None:
    builder, (strips, indices), (made,) = call.builder, call.arguments, call.results
    steps, line = strips.size(1), builder.mul(strips.size(2), i64(numbers.size))
    width, beside = builder.udiv(line, i64(WORD)), WORD // numbers.size
    last = builder.sub(builder.mul(strips.size(0), width), i64(1))
    with counting(builder, indices.size(0)) as row:
        index = builder.sext(read(builder, at(builder, indices.data, row, WORD), I32), I64)
        index = smaller(builder, index, last)
        strip, output = builder.udiv(index, width), builder.urem(index, width)
        begin = at(builder, at(builder, strips.data, strip, builder.mul(steps, line)), output, WORD)
        to = at(builder, made.data, row, builder.mul(steps, i64(beside * WORD)))
        with counting(builder, steps) as step:
            word = read(builder, at(builder, begin, step, line), I32)
            for place, number in enumerate(_floats(builder, word, numbers)):
                write(builder, number, at(builder, at(builder, to, step, beside * WORD), place, WORD))


def _floats(builder: ir.IRBuilder, word: ir.Value, numbers: Singles | Pairs) -> list[ir.Value]:
    """The bits of the floats in a word: a bfloat16 is the upper half of one."""
    if isinstance(numbers, Singles):
        return [word]
    return [builder.shl(word, ir.Constant(I32, 16)), builder.and_(word, ir.Constant(I32, -(2**16)))]
