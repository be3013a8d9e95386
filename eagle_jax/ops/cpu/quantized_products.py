"""Products of rows with a packed quantized weight (`quantized_panels.QuantizedPanels`), accumulated in integers.

Inputs are divided into blocks of at most 128, whose sums fit into 32 bits. Each block of a row is quantized to 16 or 8
bits, its largest value to 32639 or 127. Codes of weights are unsigned here, with the zero point 128 or 8. A block adds

    y[row, output]  +=  scale of the output  *  scale of the row  *  (sum of x * code  -  zero point * sum of x)

or, of weights with minima, which have no zero point, and whose sums of x are made once for all outputs,

    y[row, output]  +=  scale of the row  *  (scale of the output * sum of x * code  +  its minimum * sum of x)

Weights of 8-bit floats are multiplied with rows of float32, and a block adds the scale of the output times its sum.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32
from llvmlite import ir

from eagle_jax.ops.cpu.addressing import Addresses, Strides
from eagle_jax.ops.cpu.amx_bytes import AmxByteTiles
from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
    LANES,
    NULL,
    VECTOR,
    WORD,
    at,
    constant,
    for_range,
    for_tiles,
    i64,
    minimum,
    write,
)
from eagle_jax.ops.cpu.packed_linear import clear, valid_rows
from eagle_jax.ops.cpu.product_kind import ProductKind
from eagle_jax.ops.cpu.quantized_arithmetic import Float8Arithmetic, QuantizedArithmetic, arithmetic_of, scale_bytes
from eagle_jax.ops.cpu.quantized_rows import quantize, scales_of
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, run_phases
from eagle_jax.ops.cpu.tiles import Tiles

MAX_BLOCK = 128  # inputs: 128 * 32639 * (255 + 128), the products and their initial value, is 1.6e9, below 2**31
# AMX takes long over a block of 32 inputs: with int4 and 6 rows of 8 bits, 219 us where `Tiles` takes 189.
MIN_GROUP_OF_AMX = 64
ORIGIN_BYTES = 2 * WORD  # bytes of the sum of a block's codes, and of its scale

AnyArithmetic = QuantizedArithmetic | Float8Arithmetic


def product(
    rows: Float[Array, "r i"],
    words: UInt32[Array, "s _ w"],
    scales: Float[Array, "s g l"],
    kind: ProductKind,
    num_valid: Int[Array, ""],
) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T` in float32.

    Args:
        words: `[out / w, in bits / 32, w]`: codes, packed as `QuantizedArithmetic` says; w is a multiple of 16.
        scales: scales of each group of inputs, a multiple of 16, as `QuantizedPanels` has them.
        num_valid: number of leading rows that are not padding; the results of the others are zeros.
    """
    (count, inputs), arithmetic = rows.shape, arithmetic_of(kind)
    groups = scales.shape[1]
    blocks = groups * -(-inputs // groups // MAX_BLOCK)  # as in `_blocks`
    results = [jax.ShapeDtypeStruct((count, words.shape[0] * words.shape[2]), jnp.float32)]
    if isinstance(arithmetic, QuantizedArithmetic):
        results.append(jax.ShapeDtypeStruct((count, inputs), f"int{kind.x_bits}"))
        results.append(jax.ShapeDtypeStruct((count, blocks, 2), jnp.int32))
    return jax.ffi.ffi_call(_name(kind), results)(rows, words, scales, num_valid)[0]


@dataclasses.dataclass(frozen=True)
class Products:
    """The code for one kind of products, as a piece of `library`."""

    kind: ProductKind

    def names(self) -> list[str]:
        """Returns the name of the handler."""
        return [_name(self.kind)]

    def build(self, module: ir.Module) -> None:
        """Adds the handler."""
        arithmetic = arithmetic_of(self.kind)
        body = functools.partial(_body, arithmetic=arithmetic)
        add_handler(module, _name(self.kind), _signature(arithmetic), body)


def _signature(arithmetic: AnyArithmetic) -> Signature:
    """g groups of inputs, k blocks, s panels of w outputs."""
    kind, quantizes = arithmetic.kind, isinstance(arithmetic, QuantizedArithmetic)
    buffers = {"codes": f"int{kind.x_bits}[r, i]", "origins": "int32[r, k, 2]"} if quantizes else {}
    return Signature(
        arguments={
            "rows": "float32[r, i]",
            "words": "uint32[s, j, w]",
            "scales": f"{kind.scale_dtype}[s, g, l]",
            "num_valid": "int32[]",
        },
        results={"y": "float32[r, o]"} | buffers,
        relations=[
            "g >= 1",
            "i >= 1",
            f"i % ({LANES} * g) == 0",
            f"i == {arithmetic.inputs} * j",
            f"w % {LANES} == 0",
            f"l == {kind.scale_parts} * w",
            "o == s * w",
            *([f"k == g * ((i // g + {MAX_BLOCK - 1}) // {MAX_BLOCK})"] if quantizes else []),
        ],
    )


def _name(kind: ProductKind) -> str:
    return f"eagle_jax_product_{kind.name}"


AnyTiles = Tiles | AmxByteTiles


class _Buffers(NamedTuple):
    """Addresses: codes of the rows; sums and scales of their blocks; the weight; outputs."""

    codes: ir.Value
    origins: ir.Value
    words: ir.Value
    scales: ir.Value
    y: ir.Value


class _Block(NamedTuple):
    """Index of a block, of its group, and its inputs."""

    index: ir.Value
    group: ir.Value
    start: ir.Value
    size: ir.Value


class _Sizes(NamedTuple):
    """Sizes in elements.

    Attributes:
        group: inputs of a group.
        blocks: number of blocks.
        width: outputs of a panel.
        outputs: outputs of all panels.
        valid: number of rows that are not padding.
    """

    rows: ir.Value
    valid: ir.Value
    inputs: ir.Value
    group: ir.Value
    blocks: ir.Value
    width: ir.Value
    outputs: ir.Value


def _body(call: Call, arithmetic: AnyArithmetic) -> None:
    builder, (x, weight, scales, num_valid), (y, *results) = call.builder, call.arguments, call.results
    rows, inputs, width = x.size(0), x.size(1), weight.size(2)
    codes, origins = (buffer.data for buffer in results) if results else (x.data, NULL)
    buffers = _Buffers(codes, origins, weight.data, scales.data, y.data)
    valid, groups = valid_rows(builder, num_valid, rows), scales.size(1)
    group = builder.udiv(inputs, groups)
    blocks = builder.mul(groups, builder.udiv(builder.add(group, i64(MAX_BLOCK - 1)), i64(MAX_BLOCK)))
    sizes = _Sizes(rows, valid, inputs, group, blocks, width, y.size(1))
    if isinstance(arithmetic, QuantizedArithmetic):
        _quantize_rows(builder, x.data, buffers, sizes, arithmetic)
    vectors = builder.mul(weight.size(0), builder.udiv(width, i64(LANES)))
    work = builder.mul(builder.mul(valid, weight.size(1)), vectors)
    wide: AnyTiles = Tiles(call.module, arithmetic)
    if isinstance(arithmetic, QuantizedArithmetic) and arithmetic.in_bytes:
        wide = AmxByteTiles(call.module, arithmetic)
    narrow = Tiles(call.module, arithmetic) if arithmetic.planes == 1 else wide
    panel = functools.partial(_panel, narrow=narrow, wide=wide, arithmetic=arithmetic)
    run_phases(call, [Phase(weight.size(0), panel)], work, [*buffers, *sizes])


def _panel(
    builder: ir.IRBuilder,
    index: ir.Value,
    values: Sequence[ir.Value],
    narrow: AnyTiles,
    wide: AnyTiles,
    arithmetic: AnyArithmetic,
) -> None:
    """Builds a task: all rows times one panel.

    Args:
        narrow, wide: for groups of less than `MIN_GROUP_OF_AMX` inputs, and for others.
    """
    num_buffers = len(_Buffers._fields)
    buffers, sizes = _Buffers(*values[:num_buffers]), _Sizes(*values[num_buffers:])
    row_address, in_word = builder.mul(sizes.width, i64(WORD)), i64(arithmetic.inputs)
    columns, groups = builder.udiv(sizes.width, i64(LANES)), builder.udiv(sizes.inputs, sizes.group)
    strides = Strides(
        x_row=builder.mul(sizes.inputs, i64(arithmetic.kind.x_bits // 8)),
        y_row=builder.mul(sizes.outputs, i64(WORD)),
        w_column=i64(VECTOR),
        w_step=row_address,
        origin_row=builder.mul(sizes.blocks, i64(ORIGIN_BYTES)),
        scales_column=i64(scale_bytes(arithmetic.kind)),
    )
    scale_row = builder.mul(columns, strides.scales_column)
    all_rows = Addresses(
        x=buffers.codes,
        w=at(builder, buffers.words, index, builder.mul(builder.udiv(sizes.inputs, in_word), row_address)),
        y=at(builder, buffers.y, index, row_address),
        origin=buffers.origins,
        scales=at(builder, buffers.scales, index, builder.mul(groups, scale_row)),
    )

    def tile(first: ir.Value, count: int, tiles: AnyTiles) -> None:
        addresses = all_rows.row(builder, first, strides)
        with for_range(builder, i64(count)) as row, for_range(builder, columns) as column:
            write(builder, constant(0.0), at(builder, at(builder, addresses.y, row, strides.y_row), column, VECTOR))
        with tiles.prepared(builder, count, sizes.group), _blocks(builder, sizes) as block:
            block_addresses = dataclasses.replace(
                addresses,
                x=at(builder, addresses.x, block.start, arithmetic.part_bits // 8),
                w=at(builder, addresses.w, builder.udiv(block.start, in_word), row_address),
                origin=at(builder, addresses.origin, block.index, ORIGIN_BYTES),
                scales=at(builder, addresses.scales, block.group, scale_row),
            )
            tiles.multiply_rows(builder, block_addresses, (count, columns, builder.udiv(block.size, in_word)), strides)

    is_narrow = builder.icmp_unsigned("<", sizes.group, i64(MIN_GROUP_OF_AMX))
    with builder.if_else(is_narrow) as branches:
        for branch, tiles in zip(branches, (narrow, wide), strict=True):
            with branch:
                for_tiles(builder, sizes.valid, tiles.max_rows, functools.partial(tile, tiles=tiles))
    with for_range(builder, sizes.rows, sizes.valid) as row:
        clear(builder, at(builder, all_rows.y, row, strides.y_row), i64(0), row_address)


@contextlib.contextmanager
def _blocks(builder: ir.IRBuilder, sizes: _Sizes) -> Iterator[_Block]:
    """Builds a loop over the blocks."""
    groups = builder.udiv(sizes.inputs, sizes.group)
    each = builder.udiv(sizes.blocks, groups)
    with for_range(builder, groups) as group, for_range(builder, sizes.group, step=MAX_BLOCK) as start:
        index = builder.add(builder.mul(group, each), builder.udiv(start, i64(MAX_BLOCK)))
        size = minimum(builder, builder.sub(sizes.group, start), i64(MAX_BLOCK))
        yield _Block(index, group, builder.add(builder.mul(group, sizes.group), start), size)


def _quantize_rows(
    builder: ir.IRBuilder, x: ir.Value, buffers: _Buffers, sizes: _Sizes, arithmetic: QuantizedArithmetic
) -> None:
    """Quantizes all rows: codes, and for each block their sum and its scale."""
    plane = builder.mul(sizes.inputs, i64(arithmetic.part_bits // 8))
    with for_range(builder, sizes.valid) as row, _blocks(builder, sizes) as block:
        row_address = at(builder, x, builder.add(builder.mul(row, sizes.inputs), block.start), WORD)
        planes = at(builder, buffers.codes, builder.mul(row, i64(arithmetic.planes)), plane)
        destination = at(builder, planes, block.start, arithmetic.part_bits // 8)
        origin = at(builder, buffers.origins, builder.add(builder.mul(row, sizes.blocks), block.index), ORIGIN_BYTES)
        scale, inverse_scale = scales_of(builder, row_address, block.size, arithmetic.highest)
        total = quantize(builder, row_address, (destination, plane), block.size, inverse_scale, arithmetic)
        write(builder, total, origin)
        write(builder, scale, at(builder, origin, WORD))
