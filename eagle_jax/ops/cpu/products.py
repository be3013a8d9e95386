"""Products of rows with a weight that lies in strips (`models.strips`)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import LANES
from eagle_jax.ops.cpu.numbers import FLOATING, Pairs, Singles
from eagle_jax.ops.cpu.parts import Weight, multiply, valid_rows
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share
from eagle_jax.ops.cpu.tiles import Tiles

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_product_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_product_bf16"}


def product(rows: Float[Array, "r i"], panels: Float[Array, "s _ _"], num_valid: Int[Array, ""]) -> Float[Array, "r o"]:
    """`rows @ weight.T`, multiplied in the dtype of both, accumulated in float32.

    Args:
        panels: `[out / w, in, w]` in float32, `[out / w, in / 2, 2 w]` in bfloat16; w is a multiple of 16.
        num_valid: leading rows that are not padding; the others become zeros.
    """
    outputs = panels.size // rows.shape[1]
    result = jax.ShapeDtypeStruct((rows.shape[0], outputs), jnp.float32)
    return jax.ffi.ffi_call(NAMES[panels.dtype], result)(rows, panels, num_valid)


def names() -> list[str]:
    """Of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for dtype, name in NAMES.items():
        numbers = FLOATING[dtype]
        add_handler(module, name, _signature(dtype.name, numbers.inputs), functools.partial(_body, numbers=numbers))


def _signature(dtype: str, pair: int) -> Signature:
    """Of weights with `pair` inputs in a word."""
    return Signature(
        arguments={"rows": f"{dtype}[r, i]", "panels": f"{dtype}[s, j, l]", "num_valid": "int32[]"},
        results={"y": "float32[r, o]"},
        relations=[f"i == {pair} * j", f"l % {pair * LANES} == 0", f"{pair} * o == s * l"],
    )


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
    builder, (x, panels, num_valid), (y,) = call.builder, call.arguments, call.results
    weight, rows = Weight.of(builder, panels, numbers), x.size(0)
    count = valid_rows(builder, num_valid, rows)
    known = _Known(weight, x.data, y.data, (count, rows, y.size(1)))
    strip = functools.partial(_strip, tiles=Tiles(call.module, numbers, fetching=True))
    share(call, [Phase(weight.strips, strip)], builder.mul(count, weight.vectors(builder)), known)


def _strip(builder: ir.IRBuilder, index: ir.Value, known: _Known, tiles: Tiles) -> None:
    multiply(builder, index, known.weight, tiles, known.x, known.y, known.sizes)
