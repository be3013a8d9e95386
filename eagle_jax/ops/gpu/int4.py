"""Products of rows and weights of 4 bits in groups, for NVIDIA GPUs: weights are dequantized in registers.

Some versions of XLA dequantize the whole matrix to bfloat16 in memory first, which moves four and a half bytes per
weight instead of half a byte. Here a program reads the bytes of some outputs, along some of the inputs; a byte is two
neighbouring inputs, and the low and high halves are multiplied with the even and odd columns of the rows. Weights are
rounded to bfloat16 as by `quantized.dense`, so that products of many rows, which XLA computes, use the same values. The
inputs are split by the shape of the weight alone, so the batch and the tree around a row do not change its sums.

It needs Pallas's Triton lowering. The tests compile it for an H200 and run it in Pallas's interpreter. The first load
on a GPU measures it and uses it if it is correct and faster (`ops.choice`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

KERNEL_NAME = "int4_product"  # in compiled programs
INPUTS, TILE_ROWS = 128, 64  # of a program: inputs at a time, and maximum of rows
NARROW, WIDE = 64, 128  # outputs of a program; with many rows WIDE, since all programs read the same rows
MAX_ROWS = 128  # not measured: with many rows dequantizing in memory pays off; prompts have chunks of 256
MIN_PROGRAMS, MIN_STEPS = 256, 4  # inputs are split to have enough programs, each with enough steps
BITS = 0x4B000000  # the float32 2**23, whose lowest bits have the values 1, 2, 4, ...
ZERO = 2**23 + 8  # code 0 in that form


def refusal(outputs: int, inputs: int, groups: int) -> str | None:
    """Returns why a weight of these sizes is not supported; None if it divides into whole blocks."""
    if outputs % WIDE or inputs % INPUTS:
        return f"a weight of {outputs} x {inputs} cannot be divided into blocks of {WIDE} x {INPUTS}"
    group = inputs // groups
    if group % 2 or (INPUTS % group and group % INPUTS):
        return f"groups of {group} cannot be divided into blocks of {INPUTS}"
    return None


def product(
    rows: Float[Array, "r i"], codes: Int[Array, "o i"], scales: Float[Array, "o g"], *, interpret: bool = False
) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T`, multiplied in bfloat16 and accumulated in float32.

    Args:
        rows: bfloat16.
        codes: int4, of a weight that `refusal` accepts.
        interpret: run in Pallas's interpreter.
    """
    from jax.experimental.pallas import triton

    count, inputs = rows.shape
    outputs, tile = codes.shape[0], min(TILE_ROWS, max(16, pl.next_power_of_2(count)))
    block = WIDE if tile == TILE_ROWS else NARROW
    padded = -(-count // tile) * tile
    packed = jax.lax.bitcast_convert_type(codes.reshape(outputs, inputs // 2, 2), jnp.uint8)
    halves = jnp.pad(rows, ((0, padded - count), (0, 0))).reshape(padded, inputs // 2, 2).transpose(2, 1, 0)
    steps = inputs // INPUTS
    parts = cut(outputs // NARROW, steps)
    out = pl.pallas_call(
        functools.partial(_kernel, steps=steps // parts, inputs=inputs),
        grid=(outputs // block, padded // tile, parts),
        in_specs=[
            pl.BlockSpec((None, inputs // 2, tile), lambda o, r, p: (0, 0, r)),
            pl.BlockSpec((None, inputs // 2, tile), lambda o, r, p: (1, 0, r)),
            pl.BlockSpec((block, inputs // 2), lambda o, r, p: (o, 0)),
            pl.BlockSpec((block, scales.shape[1]), lambda o, r, p: (o, 0)),
        ],
        out_specs=pl.BlockSpec((None, block, tile), lambda o, r, p: (p, o, r)),
        out_shape=jax.ShapeDtypeStruct((parts, outputs, padded), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=block // 16, num_stages=4),
        interpret=interpret,
        name=KERNEL_NAME,
    )(halves, halves, packed, scales)
    return jnp.sum(out, axis=0)[:, :count].T


def cut(blocks: int, steps: int) -> int:
    """Returns the number of parts to split the inputs into, if the outputs alone give `blocks` programs."""
    parts = 1
    while blocks * parts < MIN_PROGRAMS and steps % (2 * parts) == 0 and steps // (2 * parts) >= MIN_STEPS:
        parts *= 2
    return parts


def _kernel(even: Any, odd: Any, packed: Any, scales: Any, out: Any, *, steps: int, inputs: int) -> None:
    """Computes `[o, r]` from even and odd columns `[in / 2, r]`, bytes `[o, in / 2]` and scales `[o, g]`."""
    from jax.experimental.pallas.triton import load, store

    group, outputs = inputs // scales.shape[1], out.shape[0]
    each = min(group, INPUTS)  # inputs of a step that share a scale
    begin = pl.program_id(2) * steps

    def add(step: Any, total: Array) -> Array:
        at = begin + step
        pairs = pl.ds(at * (INPUTS // 2), INPUTS // 2)
        both = load(packed.at[:, pairs]).astype(jnp.int32)
        scale = load(scales.at[:, pl.ds(at * INPUTS // group, INPUTS // each)]).astype(jnp.float32)[:, :, None]
        for nibbles, columns in ((both & 15, even), (both >> 4, odd)):
            code = jax.lax.bitcast_convert_type((nibbles ^ 8) | BITS, jnp.float32) - ZERO
            scaled = code.reshape(outputs, INPUTS // each, each // 2) * scale
            weight = scaled.reshape(outputs, INPUTS // 2).astype(jnp.bfloat16)
            total += jnp.dot(weight, load(columns.at[pairs, :]), preferred_element_type=jnp.float32)
        return total

    store(out.at[:, :], jax.lax.fori_loop(0, steps, add, jnp.zeros(out.shape, jnp.float32)))
