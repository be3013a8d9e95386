"""Root mean square norms of rows that do not depend on each other.

XLA:CPU sums the squares of a row in an order that depends on the number of rows.
"""

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
    alloca,
    at,
    constant,
    declare,
    for_range,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import fma, sum_lanes
from eagle_jax.ops.cpu.signatures import Signature

NAME = "eagle_jax_norm"
SIGNATURE = Signature(
    arguments={"x": "float32[r, h]", "scale": "float32[h]", "eps": "float32[]"},
    results={"y": "float32[r, h]"},
    relations=[f"h % {LANES} == 0"],
)


def rms_norm(x: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """Computes `x / sqrt(mean(x ** 2) + eps) * scale`, all float32; h is a multiple of 16."""
    return jax.ffi.ffi_call(NAME, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x, scale, jnp.float32(eps))


def names() -> list[str]:
    """Returns the names of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, SIGNATURE, _body)


def _body(call: Call) -> None:
    builder, (x, scale, eps) = call.builder, call.arguments
    rows, size = x.size(0), x.size(1)
    norm = Norm(scale.data, read(builder, eps.data, F32), size)
    with for_range(builder, rows) as row:
        first = builder.mul(row, size)
        row_address, destination = (at(builder, buffer.data, first, WORD) for buffer in (x, call.results[0]))

        def store(index: ir.Value, values: ir.Value, destination: ir.Value = destination) -> None:
            write(builder, values, at(builder, destination, index, WORD))

        norm.build(builder, row_address, store)


@dataclasses.dataclass(frozen=True)
class Norm:
    """Parameters of a norm.

    Attributes:
        scale: its address.
        eps: a float.
        size: length of a row.
    """

    scale: ir.Value
    eps: ir.Value
    size: ir.Value

    def build(self, builder: ir.IRBuilder, row_address: ir.Value, visit: Callable[[ir.Value, ir.Value], None]) -> None:
        """Builds the norm of a row; `visit(index, values)` builds what is done with every 16 results."""
        squares = alloca(builder, VECTOR)
        root = declare(builder.module, f"llvm.sqrt.v{LANES}f32", ir.FunctionType(FLOATS, [FLOATS]))
        write(builder, constant(0.0), squares)
        with for_range(builder, self.size, step=LANES) as index:
            value = read(builder, at(builder, row_address, index, WORD), FLOATS)
            write(builder, fma(builder, value, value, read(builder, squares, FLOATS)), squares)
        total = splat(builder, sum_lanes(builder, read(builder, squares, FLOATS)))
        count = splat(builder, builder.uitofp(self.size, F32))
        mean = builder.fadd(builder.fdiv(total, count), splat(builder, self.eps))
        factor = builder.fdiv(constant(1.0), builder.call(root, [mean]))
        with for_range(builder, self.size, step=LANES) as index:
            value = builder.fmul(read(builder, at(builder, row_address, index, WORD), FLOATS), factor)
            visit(index, builder.fmul(value, read(builder, at(builder, self.scale, index, WORD), FLOATS)))
