"""Products of rows with a weight that lies in strips (`models.strips`)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, add_handler
from eagle_jax.kernels.native.code import I32, I64, VECTOR, WORD, at, counting, every, i64, read, repeating, room, write
from eagle_jax.kernels.native.numbers import Pairs, Singles
from eagle_jax.kernels.native.places import Places, Strides
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
        tiles = Tiles(module, Pairs() if dtype == jnp.bfloat16 else Singles())
        add_handler(module, name, functools.partial(_body, tiles=tiles, itemsize=dtype.itemsize), arguments=2)


def _body(call: Call, tiles: Tiles, itemsize: int) -> None:
    builder, (x, weight) = call.builder, call.arguments
    strips, steps, width = (weight.size(axis) for axis in range(3))
    step = builder.mul(width, i64(itemsize))
    rows, columns = x.size(0), builder.udiv(step, i64(VECTOR))
    y_row = builder.mul(call.results[0].size(1), i64(WORD))
    line = builder.mul(steps, i64(WORD))
    used = _but_last_zeros(builder, x.data, rows, line)
    work = builder.mul(builder.mul(used, steps), builder.mul(strips, columns))

    def strip(builder: ir.IRBuilder, index: ir.Value, values: Sequence[ir.Value]) -> None:
        x, w, y, used, rows, columns, steps, step, y_row = values
        from_, to = (
            at(builder, w, index, builder.mul(steps, step)),
            at(builder, y, index, builder.mul(columns, i64(VECTOR))),
        )
        strides = Strides(x_row=builder.mul(steps, i64(WORD)), y_row=y_row, w_column=i64(VECTOR), w_step=step)
        tiles.any_rows(builder, Places(x, from_, to), (used, columns, steps), strides)
        with counting(builder, rows, used) as row, counting(builder, columns) as column:
            write(builder, every(0.0), at(builder, at(builder, to, row, y_row), column, VECTOR))

    values = [x.data, weight.data, call.results[0].data, used, rows, columns, steps, step, y_row]
    share(call, [Phase(strips, strip)], work, values)


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
