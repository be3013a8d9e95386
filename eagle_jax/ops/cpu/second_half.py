"""The second half of a decoder layer, `y = x + down(silu(gate(norm(x))) up(norm(x)))`, as one operation."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
    FLOATS,
    LANES,
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
from eagle_jax.ops.cpu.given import Gated
from eagle_jax.ops.cpu.math import silu
from eagle_jax.ops.cpu.numbers import FLOATING, Pairs, Singles
from eagle_jax.ops.cpu.parts import Input, Weight, multiply, valid_rows
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share
from eagle_jax.ops.cpu.tiles import Tiles

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
        numbers = FLOATING[dtype]
        add_handler(module, name, _signature(dtype.name, numbers.inputs), functools.partial(_body, numbers=numbers))


def _signature(dtype: str, pair: int) -> Signature:
    """Of weights with `pair` inputs in a word; a number in between has the index a."""
    return Signature(
        arguments={
            "x": "float32[r, h]",
            "eps": "float32[]",
            "scale": "float32[h]",
            "gate_up": f"{dtype}[s, j, l]",
            "down": f"{dtype}[t, e, d]",
            "num_valid": "int32[]",
        },
        results={"y": "float32[r, h]", "ready": f"{dtype}[r, h]", "between": f"{dtype}[r, a]"},
        relations=[
            f"h % {LANES} == 0",
            f"h == {pair} * j",
            f"l % {pair * LANES} == 0",
            f"l <= {pair * WIDEST}",
            "s % 2 == 0",
            f"s * l == {2 * pair} * a",
            f"a == {pair} * e",
            f"d % {pair * LANES} == 0",
            f"t * d == {pair} * h",
        ],
    )


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


def _body(call: Call, numbers: Singles | Pairs) -> None:
    builder, (x, eps, scale, *weights, num_valid), (y, ready, between) = call.builder, call.arguments, call.results
    count = valid_rows(builder, num_valid, x.size(0))
    given = Input(x.data, scale.data, eps.data, ready.data, scale.size(0), count, x.size(1))
    gate_up, down = (Weight.of(builder, weight, numbers) for weight in weights)
    known = _Known(given, gate_up, down, x.size(0), between.size(1), between.data, y.data)
    tiles = Tiles(call.module, numbers, fetching=True)
    phases = [
        given.phase(builder, numbers),
        Phase(builder.lshr(gate_up.strips, i64(1)), functools.partial(_between, tiles=tiles, numbers=numbers)),
        Phase(down.strips, functools.partial(_outputs, tiles=tiles)),
    ]
    vectors = builder.add(gate_up.vectors(builder), down.vectors(builder))
    share(call, phases, builder.mul(count, vectors), known)


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
