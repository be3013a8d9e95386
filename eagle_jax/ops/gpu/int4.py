"""Rows times weights of 4 bits in groups, for NVIDIA GPUs: bytes become numbers in registers and go nowhere else.

Some versions of XLA make bfloat16 of a whole matrix in memory for such a product, and read that: four and a half bytes
a weight where half a byte was meant to move. Here a program reads the bytes of some outputs, along some of the inputs;
a byte is two neighbouring inputs, and the low and the high halves are multiplied with the even and the odd columns of
the rows. The weights are rounded to bfloat16 as `quantized.dense` rounds them, so products of many rows, which are left
to XLA, meet the same ones. How the inputs are cut follows from its shape alone, so up to rounding neither the
batch nor the tree around a row moves its sums.

It goes through Pallas's Triton lowering, is compiled for an H200 and run in Pallas's interpreter by the tests. The
first load on a GPU measures it there and takes it where it is right and faster (`ops.choice`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

IN_PROGRAMS = "int4_product"  # what it is called in compiled ones
INPUTS, ROWS = 128, 64  # of a program: inputs at a time, and most rows
NARROW, WIDE = 64, 128  # its outputs; with many rows more of them, since all programs read the same rows
MAX_ROWS = 128  # not measured: with many more rows unpacking in memory is paid back; prompts are read 256 at a time
PROGRAMS, MIN_STEPS = 256, 4  # cut along the inputs to have so many programs, of no fewer steps than these
BITS = 0x4B000000  # of 2**23, a float32 whose lowest bits count in ones
ZERO = 2**23 + 8  # what code 0 becomes there


def refusal(outputs: int, inputs: int, groups: int) -> str | None:
    """Returns why a weight of these sizes is not supported; None if it divides into whole blocks."""
    if outputs % WIDE or inputs % INPUTS:
        return f"a weight of {outputs} x {inputs} does not come apart into blocks of {WIDE} x {INPUTS}"
    group = inputs // groups
    if group % 2 or (INPUTS % group and group % INPUTS):
        return f"groups of {group} do not come apart into blocks of {INPUTS}"
    return None


def product(
    rows: Float[Array, "r i"], codes: Int[Array, "o i"], scales: Float[Array, "o g"], *, interpret: bool = False
) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T`, multiplied in bfloat16, added up and returned in float32.

    Args:
        rows: bfloat16.
        codes: int4, of a weight that is not refused.
        interpret: run in Pallas's interpreter.
    """
    from jax.experimental.pallas import triton

    count, inputs = rows.shape
    outputs, tile = codes.shape[0], min(ROWS, max(16, pl.next_power_of_2(count)))
    block = WIDE if tile == ROWS else NARROW
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
        name=IN_PROGRAMS,
    )(halves, halves, packed, scales)
    return jnp.sum(out, axis=0)[:, :count].T


def cut(blocks: int, steps: int) -> int:
    """Returns the number of parts that the inputs are cut into, where the outputs alone make `blocks` programs."""
    parts = 1
    while blocks * parts < PROGRAMS and steps % (2 * parts) == 0 and steps // (2 * parts) >= MIN_STEPS:
        parts *= 2
    return parts


def _kernel(even: Any, odd: Any, packed: Any, scales: Any, out: Any, *, steps: int, inputs: int) -> None:
    """Runs one program: even and odd columns `[in / 2, r]`, bytes `[o, in / 2]`, scales `[o, g]`; makes `[o, r]`."""
    from jax.experimental.pallas.triton import load, store

    group, outputs = inputs // scales.shape[1], out.shape[0]
    each = min(group, INPUTS)  # inputs of a step that have one scale
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
