"""Root mean square norms. In which order XLA:CPU adds up the squares of a row hangs on the number of rows; here not."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import (
    F32,
    FLOATS,
    LANES,
    VECTOR,
    WORD,
    at,
    counting,
    declared,
    every,
    everywhere,
    read,
    room,
    write,
)
from eagle_jax.kernels.native.math import fma, summed

NAME = "eagle_jax_norm"


def norm(x: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """`x / sqrt(mean(x ** 2) + eps) * scale`, all float32; h is a multiple of 16."""
    return jax.ffi.ffi_call(NAME, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x, scale, jnp.float32(eps))


def names() -> list[str]:
    """Of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, _body, arguments=3)


def _body(call: Call) -> None:
    builder, (x, scale, eps) = call.builder, call.arguments
    rows, size, squares = x.size(0), x.size(1), room(builder, VECTOR)
    count = everywhere(builder, builder.uitofp(size, F32))
    least, known = everywhere(builder, read(builder, eps.data, F32)), scale.data
    root = declared(builder.module, f"llvm.sqrt.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
    with counting(builder, rows) as row:
        first = builder.mul(row, size)
        line, to = (at(builder, buffer.data, first, WORD) for buffer in (x, call.results[0]))
        write(builder, every(0.0), squares)
        with counting(builder, size, step=LANES) as index:
            number = read(builder, at(builder, line, index, WORD), FLOATS)
            write(builder, fma(builder, number, number, read(builder, squares, FLOATS)), squares)
        total = everywhere(builder, summed(builder, read(builder, squares, FLOATS)))
        mean = builder.fadd(builder.fdiv(total, count), least)
        factor = builder.fdiv(every(1.0), builder.call(root, [mean]))
        with counting(builder, size, step=LANES) as index:
            number = builder.fmul(read(builder, at(builder, line, index, WORD), FLOATS), factor)
            number = builder.fmul(number, read(builder, at(builder, known, index, WORD), FLOATS))
            write(builder, number, at(builder, to, index, WORD))
