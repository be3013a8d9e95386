"""Products of rows with a weight that lies in strips (`models.strips`)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import I32, I64, WORD, at, counting, i64, read, repeating, room, write
from eagle_jax.kernels.native.numbers import FLOATING, Pairs, Singles
from eagle_jax.kernels.native.parts import Weight, multiply
from eagle_jax.kernels.native.threads import Phase, share
from eagle_jax.kernels.native.tiles import Tiles

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_product_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_product_bf16"}


def product(rows: Float[Array, "r i"], strips: Float[Array, "s _ _"]) -> Float[Array, "r o"]:
    """`rows @ weight.T`, multiplied in the dtype of both, added up in float32.

    Args:
        strips: `[out / w, in, w]` in float32, `[out / w, in / 2, 2 w]` in bfloat16; w is a multiple of 16.
    """
    outputs = strips.size // rows.shape[1]
    made = jax.ShapeDtypeStruct((rows.shape[0], outputs), jnp.float32)
    return jax.ffi.ffi_call(NAMES[strips.dtype], made)(rows, strips)


def names() -> list[str]:
    """Of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for dtype, name in NAMES.items():
        add_handler(module, name, functools.partial(_body, numbers=FLOATING[dtype]), arguments=2)


class _Known(NamedTuple):
    """What tasks know.

    Attributes:
        x, y: addresses of rows and outputs.
        sizes: rows that are used, rows, and outputs of each.
    """

    weight: Weight
    x: ir.Value
    y: ir.Value
    sizes: tuple[ir.Value, ir.Value, ir.Value]


def _body(call: Call, numbers: Singles | Pairs) -> None:
    builder, (x, strips), (y,) = call.builder, call.arguments, call.results
    weight, rows = Weight.of(builder, strips, numbers), x.size(0)
    used = _but_last_zeros(builder, x.data, rows, builder.mul(weight.steps, i64(WORD)))
    known = _Known(weight, x.data, y.data, (used, rows, y.size(1)))
    strip = functools.partial(_strip, tiles=Tiles(call.module, numbers, fetching=True))
    share(call, [Phase(weight.strips, strip)], builder.mul(used, weight.vectors(builder)), known)


def _strip(builder: ir.IRBuilder, index: ir.Value, known: _Known, tiles: Tiles) -> None:
    multiply(builder, index, known.weight, tiles, known.x, known.y, known.sizes)


def _but_last_zeros(builder: ir.IRBuilder, x: ir.Value, rows: ir.Value, line: ir.Value) -> ir.Value:
    """How many rows there are without the last ones that are nothing but zeros, as rows are that nobody wants."""
    used, bits = room(builder, 8), room(builder, WORD)
    write(builder, rows, used)
    with repeating(builder) as leave:
        count = read(builder, used, I64)
        with builder.if_then(builder.icmp_unsigned("<=", count, i64(1))):
            builder.branch(leave)
        write(builder, ir.Constant(I32, 0), bits)
        last = at(builder, x, builder.sub(count, i64(1)), line)
        with counting(builder, line, step=WORD) as offset:
            word = read(builder, at(builder, last, offset), I32)
            write(builder, builder.or_(read(builder, bits, I32), word), bits)
        with builder.if_then(builder.icmp_unsigned("!=", read(builder, bits, I32), ir.Constant(I32, 0))):
            builder.branch(leave)
        write(builder, builder.sub(count, i64(1)), used)
    return read(builder, used, I64)
