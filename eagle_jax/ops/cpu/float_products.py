"""Products of rows with a packed float weight (`panels.Panels`)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.ops.cpu.arithmetic import FloatArithmetic
from eagle_jax.ops.cpu.calls import Call
from eagle_jax.ops.cpu.code import LANES
from eagle_jax.ops.cpu.packed_linear import AnyTiles, Weight, add_float_handlers, multiply_panel, tiles_for, valid_rows
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, run_phases

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_product_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_product_bf16"}


def product(rows: Float[Array, "r i"], panels: Float[Array, "s _ _"], num_valid: Int[Array, ""]) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T`, multiplied in the dtype of both, accumulated in float32.

    Args:
        panels: `[out / w, in, w]` in float32, `[out / w, in / 2, 2 w]` in bfloat16; w is a multiple of 16.
        num_valid: number of leading rows that are not padding; the results of the others are zeros.
    """
    outputs = panels.size // rows.shape[1]
    result = jax.ShapeDtypeStruct((rows.shape[0], outputs), jnp.float32)
    return jax.ffi.ffi_call(NAMES[panels.dtype], result)(rows, panels, num_valid)


def names() -> list[str]:
    """Returns the names of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    add_float_handlers(module, NAMES, _signature, _body)


def _signature(dtype: str, pair: int) -> Signature:
    """Returns the signature for weights with `pair` inputs in a word."""
    return Signature(
        arguments={"rows": f"{dtype}[r, i]", "panels": f"{dtype}[s, j, l]", "num_valid": "int32[]"},
        results={"y": "float32[r, o]"},
        relations=[f"i == {pair} * j", f"l % {pair * LANES} == 0", f"{pair} * o == s * l"],
    )


class _Context(NamedTuple):
    """Values that the tasks need.

    Attributes:
        x, y: addresses of rows and outputs.
        sizes: numbers of valid rows, of rows, and of outputs of each.
    """

    weight: Weight
    x: ir.Value
    y: ir.Value
    sizes: tuple[ir.Value, ir.Value, ir.Value]


def _body(call: Call, arithmetic: FloatArithmetic) -> None:
    builder, (x, panels, num_valid), (y,) = call.builder, call.arguments, call.results
    weight, rows = Weight.from_buffer(builder, panels, arithmetic), x.size(0)
    count = valid_rows(builder, num_valid, rows)
    context = _Context(weight, x.data, y.data, (count, rows, y.size(1)))
    panel = functools.partial(_panel, tiles=tiles_for(call.module, arithmetic))
    run_phases(call, [Phase(weight.panels, panel)], builder.mul(count, weight.vectors(builder)), context)


def _panel(builder: ir.IRBuilder, index: ir.Value, context: _Context, tiles: AnyTiles) -> None:
    multiply_panel(builder, index, context.weight, tiles, context.x, context.y, context.sizes)
