"""The MLP block of a decoder layer, `y = x + down(silu(gate(norm(x))) * up(norm(x)))`, as one operation."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.ops.cpu.arguments import PackedMLP
from eagle_jax.ops.cpu.arithmetic import FloatArithmetic
from eagle_jax.ops.cpu.calls import Call
from eagle_jax.ops.cpu.code import (
    FLOATS,
    LANES,
    VECTOR,
    WORD,
    alloca,
    at,
    for_range,
    for_tiles,
    i64,
    read,
    write,
)
from eagle_jax.ops.cpu.math import silu
from eagle_jax.ops.cpu.packed_linear import (
    AnyTiles,
    InputRows,
    Weight,
    add_float_handlers,
    multiply_panel,
    tiles_for,
    valid_rows,
)
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, run_phases

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_mlp_block_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_mlp_block_bf16"}
MAX_WIDTH = 64  # outputs of a panel


def mlp_block(
    x: Float[Array, "r h"], eps: float, weights: PackedMLP, inner: int, num_valid: Int[Array, ""]
) -> Float[Array, "r h"]:
    """Computes the block for rows of float32; zeros for rows of padding.

    Args:
        eps: epsilon of the norm.
        weights: the outputs of the gate end at the end of a panel.
        inner: intermediate size.
        num_valid: number of leading rows that are not padding.
    """
    rows, size = x.shape
    dtype = weights.gate_up.dtype
    result_types = [(rows, size, jnp.float32), (rows, size, dtype), (rows, inner, dtype)]
    results = [jax.ShapeDtypeStruct(tuple(shape), kind) for *shape, kind in result_types]
    return jax.ffi.ffi_call(NAMES[dtype], results)(x, jnp.float32(eps), *weights, num_valid)[0]


def names() -> list[str]:
    """Returns the names of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    add_float_handlers(module, NAMES, _signature, _body)


def _signature(dtype: str, pair: int) -> Signature:
    """Returns the signature for weights with `pair` inputs in a word; a is the intermediate size."""
    return Signature(
        arguments={
            "x": "float32[r, h]",
            "eps": "float32[]",
            "scale": "float32[h]",
            "gate_up": f"{dtype}[s, j, l]",
            "down": f"{dtype}[t, e, d]",
            "num_valid": "int32[]",
        },
        results={"y": "float32[r, h]", "prepared": f"{dtype}[r, h]", "hidden": f"{dtype}[r, a]"},
        relations=[
            f"h % {LANES} == 0",
            f"h == {pair} * j",
            f"l % {pair * LANES} == 0",
            f"l <= {pair * MAX_WIDTH}",
            "s % 2 == 0",
            f"s * l == {2 * pair} * a",
            f"a == {pair} * e",
            f"d % {pair * LANES} == 0",
            f"t * d == {pair} * h",
        ],
    )


class _Context(NamedTuple):
    """Values that the tasks need.

    Attributes:
        rows: their number, padding included.
        inner: intermediate size.
        hidden, y: addresses of the intermediate values and of the outputs.
    """

    input_rows: InputRows
    gate_up: Weight
    down: Weight
    rows: ir.Value
    inner: ir.Value
    hidden: ir.Value
    y: ir.Value


def _body(call: Call, arithmetic: FloatArithmetic) -> None:
    builder, (x, eps, scale, *weights, num_valid), (y, prepared, hidden) = call.builder, call.arguments, call.results
    count = valid_rows(builder, num_valid, x.size(0))
    input_rows = InputRows(x.data, scale.data, eps.data, prepared.data, scale.size(0), count, x.size(1))
    gate_up, down = (Weight.from_buffer(builder, weight, arithmetic) for weight in weights)
    context = _Context(input_rows, gate_up, down, x.size(0), hidden.size(1), hidden.data, y.data)
    tiles = tiles_for(call.module, arithmetic)
    phases = [
        input_rows.phase(builder, arithmetic),
        Phase(builder.lshr(gate_up.panels, i64(1)), functools.partial(_hidden, tiles=tiles, arithmetic=arithmetic)),
        Phase(down.panels, functools.partial(_outputs, tiles=tiles)),
    ]
    vectors = builder.add(gate_up.vectors(builder), down.vectors(builder))
    run_phases(call, phases, builder.mul(count, vectors), context)


def _hidden(
    builder: ir.IRBuilder, panel: ir.Value, context: _Context, tiles: AnyTiles, arithmetic: FloatArithmetic
) -> None:
    """Builds a task: `silu(gate(x)) * up(x)` of one panel of both."""
    weight, input_rows = context.gate_up, context.input_rows
    line = i64(MAX_WIDTH * WORD)
    gates, ups = (alloca(builder, tiles.max_rows * MAX_WIDTH * WORD) for _ in range(2))
    other = builder.add(panel, builder.lshr(weight.panels, i64(1)))
    to = at(builder, context.hidden, builder.mul(panel, weight.columns), VECTOR // WORD * arithmetic.size)

    def tile(first: ir.Value, number: int) -> None:
        rows = at(builder, input_rows.prepared, first, builder.mul(weight.steps, i64(WORD))), number
        weight.multiply_rows(builder, tiles, rows, panel, (gates, line))
        weight.multiply_rows(builder, tiles, rows, other, (ups, line))
        with for_range(builder, i64(number)) as row, for_range(builder, weight.columns) as column:
            offset = builder.add(builder.mul(row, line), builder.mul(column, i64(VECTOR)))
            gate, up = (read(builder, at(builder, base, offset), FLOATS) for base in (gates, ups))
            destination = at(builder, to, builder.mul(builder.add(first, row), context.inner), arithmetic.size)
            destination = at(builder, destination, column, VECTOR // WORD * arithmetic.size)
            write(builder, arithmetic.convert(builder, builder.fmul(silu(builder, gate), up)), destination)

    for_tiles(builder, input_rows.count, tiles.max_rows, tile)


def _outputs(builder: ir.IRBuilder, panel: ir.Value, context: _Context, tiles: AnyTiles) -> None:
    sizes = context.input_rows.count, context.rows, context.input_rows.size
    multiply_panel(builder, panel, context.down, tiles, context.hidden, context.y, sizes, residual=context.input_rows.x)
