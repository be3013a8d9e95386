"""Root mean square norms. In which order XLA:CPU adds up the squares of a row hangs on the number of rows; here not."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
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
from eagle_jax.ops.cpu.math import fma, summed
from eagle_jax.ops.cpu.signatures import Signature

NAME = "eagle_jax_norm"
SIGNATURE = Signature(
    arguments={"x": "float32[r, h]", "scale": "float32[h]", "eps": "float32[]"},
    results={"y": "float32[r, h]"},
    relations=[f"h % {LANES} == 0"],
)


def norm(x: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """`x / sqrt(mean(x ** 2) + eps) * scale`, all float32; h is a multiple of 16."""
    return jax.ffi.ffi_call(NAME, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x, scale, jnp.float32(eps))


def names() -> list[str]:
    """Of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, SIGNATURE, _body)


def _body(call: Call) -> None:
    builder, (x, scale, eps) = call.builder, call.arguments
    rows, size = x.size(0), x.size(1)
    norm_ = Norm(scale.data, read(builder, eps.data, F32), size)
    with counting(builder, rows) as row:
        first = builder.mul(row, size)
        line, to = (at(builder, buffer.data, first, WORD) for buffer in (x, call.results[0]))

        def put(index: ir.Value, numbers: ir.Value, to: ir.Value = to) -> None:
            write(builder, numbers, at(builder, to, index, WORD))

        norm_.build(builder, line, put)


@dataclasses.dataclass(frozen=True)
class Norm:
    """What rows are normed with.

    Attributes:
        scale: its address.
        eps: a float.
        size: of a row.
    """

    scale: ir.Value
    eps: ir.Value
    size: ir.Value

    def build(self, builder: ir.IRBuilder, line: ir.Value, then: Callable[[ir.Value, ir.Value], None]) -> None:
        """Norms a row; `then(index, numbers)` is built for every 16 of it."""
        squares = room(builder, VECTOR)
        root = declared(builder.module, f"llvm.sqrt.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
        write(builder, every(0.0), squares)
        with counting(builder, self.size, step=LANES) as index:
            number = read(builder, at(builder, line, index, WORD), FLOATS)
            write(builder, fma(builder, number, number, read(builder, squares, FLOATS)), squares)
        total = everywhere(builder, summed(builder, read(builder, squares, FLOATS)))
        count = everywhere(builder, builder.uitofp(self.size, F32))
        mean = builder.fadd(builder.fdiv(total, count), everywhere(builder, self.eps))
        factor = builder.fdiv(every(1.0), builder.call(root, [mean]))
        with counting(builder, self.size, step=LANES) as index:
            number = builder.fmul(read(builder, at(builder, line, index, WORD), FLOATS), factor)
            then(index, builder.fmul(number, read(builder, at(builder, self.scale, index, WORD), FLOATS)))
