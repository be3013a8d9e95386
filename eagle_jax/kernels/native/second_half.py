"""The second half of a decoder layer, `y = x + down(silu(gate(norm(x))) up(norm(x)))`, as one operation."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.kernels.native.calls import Call, Lying, add_handler
from eagle_jax.kernels.native.code import (
    FLOATS,
    VECTOR,
    WORD,
    at,
    by_tiles,
    counting,
    i64,
    read,
    room,
    write,
)
from eagle_jax.kernels.native.given import Gated
from eagle_jax.kernels.native.math import silu
from eagle_jax.kernels.native.numbers import FLOATING, Pairs, Singles
from eagle_jax.kernels.native.parts import Input, Part, Weight, multiply, wanted_of
from eagle_jax.kernels.native.threads import Phase, share
from eagle_jax.kernels.native.tiles import Tiles

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_mlp_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_mlp_bf16"}
WIDEST = 64  # outputs of a strip


def mlp(x: Float[Array, "r h"], eps: float, weights: Gated, inner: int, wanted: Int[Array, ""]) -> Float[Array, "r h"]:
    """The half layer of float32 rows; zeros for rows that are not wanted.

    Args:
        eps: of the norm.
        weights: those of the gate end where a strip ends.
        inner: numbers between them.
        wanted: how many of the rows are.
    """
    rows, size = x.shape
    dtype = weights.gate_up.dtype
    made = [(rows, size, jnp.float32), (rows, size, dtype), (rows, inner, dtype)]
    results = [jax.ShapeDtypeStruct(tuple(shape), kind) for *shape, kind in made]
    return jax.ffi.ffi_call(NAMES[dtype], results)(x, jnp.float32(eps), *weights, wanted)[0]


def names() -> list[str]:
    """Of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for dtype, name in NAMES.items():
        add_handler(module, name, functools.partial(_body, numbers=FLOATING[dtype]), arguments=6, results=3)


def _body(call: Call, numbers: Singles | Pairs) -> None:
    share(call, *half(call.module, call.builder, call.arguments, call.results, numbers))


class _Known(NamedTuple):
    """What tasks know.

    Attributes:
        rows: all of them, wanted or not.
        inner: numbers between the weights.
        between, y: addresses of these, and of the outputs.
    """

    given: Input
    gate_up: Weight
    down: Weight
    rows: ir.Value
    inner: ir.Value
    between: ir.Value
    y: ir.Value


def half(
    module: ir.Module,
    builder: ir.IRBuilder,
    arguments: Sequence[Lying],
    results: Sequence[Lying],
    numbers: Singles | Pairs,
) -> Part:
    """The half layer of the handler's arguments and results; of y only the address is looked at."""
    (x, eps, scale, *weights, wanted), (y, ready, between) = arguments, results
    count = wanted_of(builder, wanted, x.size(0))
    given = Input(x.data, scale.data, eps.data, ready.data, scale.size(0), count, x.size(1))
    gate_up, down = (Weight.of(builder, weight, numbers) for weight in weights)
    known = _Known(given, gate_up, down, x.size(0), between.size(1), between.data, y.data)
    tiles = Tiles(module, numbers, fetching=True)
    phases = [
        given.phase(builder, numbers),
        Phase(builder.lshr(gate_up.strips, i64(1)), functools.partial(_between, tiles=tiles, numbers=numbers)),
        Phase(down.strips, functools.partial(_outputs, tiles=tiles)),
    ]
    vectors = builder.add(gate_up.vectors(builder), down.vectors(builder))
    return Part(phases, builder.mul(given.count, vectors), known)


def _between(builder: ir.IRBuilder, strip: ir.Value, known: _Known, tiles: Tiles, numbers: Singles | Pairs) -> None:
    """`silu(gate(x)) up(x)` of a strip of both."""
    weight, given = known.gate_up, known.given
    line = i64(WIDEST * WORD)
    gates, ups = (room(builder, tiles.most_rows * WIDEST * WORD) for _ in range(2))
    other = builder.add(strip, builder.lshr(weight.strips, i64(1)))
    to = at(builder, known.between, builder.mul(strip, weight.columns), VECTOR // WORD * numbers.size)

    def few(first: ir.Value, number: int) -> None:
        rows = at(builder, given.ready, first, builder.mul(weight.steps, i64(WORD))), number
        weight.times(builder, tiles, rows, strip, (gates, line))
        weight.times(builder, tiles, rows, other, (ups, line))
        with counting(builder, i64(number)) as row, counting(builder, weight.columns) as column:
            offset = builder.add(builder.mul(row, line), builder.mul(column, i64(VECTOR)))
            gate, up = (read(builder, at(builder, base, offset), FLOATS) for base in (gates, ups))
            place = at(builder, to, builder.mul(builder.add(first, row), known.inner), numbers.size)
            place = at(builder, place, column, VECTOR // WORD * numbers.size)
            write(builder, numbers.of(builder, builder.fmul(silu(builder, gate), up)), place)

    by_tiles(builder, given.count, tiles.most_rows, few)


def _outputs(builder: ir.IRBuilder, strip: ir.Value, known: _Known, tiles: Tiles) -> None:
    sizes = known.given.count, known.rows, known.given.size
    multiply(builder, strip, known.down, tiles, known.between, known.y, sizes, residual=known.given.x)
