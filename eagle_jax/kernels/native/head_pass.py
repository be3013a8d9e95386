"""A pass of an EAGLE-1 head of one layer, `fc([embedding ; feature])`, the layer, the output matrix, as one operation.

With a few rows and so few weights, beginning an operation is a good part of its time.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.kernels.native import first_half, second_half
from eagle_jax.kernels.native.calls import Call, Lying, add_handler
from eagle_jax.kernels.native.code import FLOATS, LANES, VECTOR, WORD, at, counting, i64, read, write
from eagle_jax.kernels.native.given import HeadWeights, Seen
from eagle_jax.kernels.native.numbers import FLOATING, Pairs, Singles
from eagle_jax.kernels.native.parts import Input, Part, Weight, in_turn, multiply, wanted_of
from eagle_jax.kernels.native.threads import Phase, share
from eagle_jax.kernels.native.tiles import Tiles
from eagle_jax.models.cache import KV

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_head_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_head_bf16"}
WEIGHTS, MADE = 9, 7 + first_half.MADE  # arguments, and results


def head(
    embeddings: Float[Array, "b n h"],
    features: Float[Array, "b n h"],
    weights: HeadWeights,
    seen: Seen,
) -> tuple[Float[Array, "b n h"], KV, Float[Array, "b n d"]]:
    """Outputs of float32 rows, their keys and values, and logits; zeros for rows that are not wanted."""
    results = [jax.ShapeDtypeStruct(*kind) for kind in made(embeddings.shape, weights, seen)]
    given = [embeddings, features, jnp.float32(weights.eps), *listed(weights), *first_half.given(seen, weights.factor)]
    out, said, _, _, _, k, v, *_ = jax.ffi.ffi_call(NAMES[weights.fc.dtype], results)(*given)
    return out, (k, v), said


def listed(weights: HeadWeights) -> list[Array]:
    """The arguments in the middle, `WEIGHTS` of them."""
    return [weights.fc, weights.bias, *weights.mixing, *weights.gated, weights.output]


def made(shape: tuple[int, ...], weights: HeadWeights, seen: Seen) -> list[tuple[tuple[int, ...], DTypeLike]]:
    """Shapes and dtypes of the results, `MADE` of them, for rows of this shape: outputs, logits, and room; keys and
    values are the sixth and seventh.
    """
    (batch, nodes, size), dtype = shape, weights.fc.dtype
    rows = batch * nodes
    _, *mixing = first_half.made(shape, shape, weights.mixing, seen)
    return [
        (shape, jnp.float32),
        ((batch, nodes, weights.output.size // size), jnp.float32),
        ((rows, 2 * size), dtype),
        (shape, jnp.float32),
        ((rows, size), jnp.float32),
        *mixing,
        *[((rows, size), dtype)] * 2,
        ((rows, weights.inner), dtype),
    ]


@dataclasses.dataclass(frozen=True)
class Piece:
    """The handler for weights of a dtype."""

    dtype: np.dtype

    def names(self) -> list[str]:
        """Of the handlers."""
        return [NAMES[self.dtype]]

    def build(self, module: ir.Module) -> None:
        """Adds the handler."""
        body = functools.partial(_body, numbers=FLOATING[self.dtype])
        given = 3 + WEIGHTS + first_half.GIVEN
        add_handler(module, NAMES[self.dtype], body, arguments=given, results=MADE)


class _Entered(NamedTuple):
    """What tasks know that make the layer's rows.

    Attributes:
        embeddings, features, bias, both, x: addresses.
        biased: numbers of the bias, none or one for each output.
        count, rows, size: rows that are wanted, rows, and their numbers.
    """

    fc: Weight
    embeddings: ir.Value
    features: ir.Value
    bias: ir.Value
    both: ir.Value
    x: ir.Value
    biased: ir.Value
    count: ir.Value
    rows: ir.Value
    size: ir.Value


class _Said(NamedTuple):
    """What tasks know that make logits: what they are made of, the address of those, and rows and logits of each."""

    given: Input
    output: Weight
    logits: ir.Value
    rows: ir.Value
    size: ir.Value


def _body(call: Call, numbers: Singles | Pairs) -> None:
    given, seen = call.arguments[: 3 + WEIGHTS], call.arguments[3 + WEIGHTS :]
    made = parts(call.module, call.builder, given, seen, call.results, numbers)
    share(call, *in_turn(call.builder, made))


def parts(
    module: ir.Module,
    builder: ir.IRBuilder,
    given: Sequence[Lying],
    seen: Sequence[Lying],
    results: Sequence[Lying],
    numbers: Singles | Pairs,
    apart: ir.Value | None = None,
) -> list[Part]:
    """The layer's rows, its halves, and the logits, of the handler's arguments and results.

    Args:
        seen: the last arguments.
        apart: as in `first_half.half`.
    """
    embeddings, features, eps, fc, bias, scale, qkv, o, *gated, output = given
    out, logits, both, x = results[:4]
    halfway, *mixed = results[4 : 4 + first_half.MADE]
    ready, last, between = results[4 + first_half.MADE :]
    wanted, rows = seen[-1], builder.mul(x.size(0), x.size(1))
    count = wanted_of(builder, wanted, rows)
    tiles = Tiles(module, numbers, fetching=True)
    first = [x, x, eps, scale, qkv, o, *seen], [halfway, *mixed]
    second = [halfway, eps, *gated, wanted], [out, ready, between]
    return [
        _enter(builder, tiles, numbers, (embeddings, features, fc, bias), (both, x), (count, rows)),
        first_half.half(module, builder, *first, numbers, apart),
        second_half.half(module, builder, *second, numbers),
        _say(builder, tiles, numbers, (out, eps, output), (last, logits), (count, rows)),
    ]


def _enter(
    builder: ir.IRBuilder,
    tiles: Tiles,
    numbers: Singles | Pairs,
    arguments: tuple[Lying, ...],
    results: tuple[Lying, Lying],
    rows: tuple[ir.Value, ir.Value],
) -> Part:
    """The layer's rows, `x = fc([embedding ; feature]) + bias`."""
    (embeddings, features, fc, bias), (both, x) = arguments, results
    weight = Weight.of(builder, fc, numbers)
    addresses = embeddings.data, features.data, bias.data, both.data, x.data
    known = _Entered(weight, *addresses, bias.size(0), rows[0], rows[1], x.size(2))
    phases = [
        Phase(known.count, functools.partial(_beside, numbers=numbers)),
        Phase(weight.strips, functools.partial(_fc, tiles=tiles)),
    ]
    return Part(phases, builder.mul(known.count, weight.vectors(builder)), known)


def _beside(builder: ir.IRBuilder, row: ir.Value, known: _Entered, numbers: Singles | Pairs) -> None:
    """An embedding and a feature beside each other, in the numbers that are multiplied."""
    first = builder.mul(row, known.size)
    to = at(builder, known.both, builder.mul(first, i64(2)), numbers.size)
    for base, begin in ((known.embeddings, i64(0)), (known.features, known.size)):
        line, half = at(builder, base, first, WORD), at(builder, to, begin, numbers.size)
        with counting(builder, known.size, step=LANES) as index:
            floats = read(builder, at(builder, line, index, WORD), FLOATS)
            write(builder, numbers.of(builder, floats), at(builder, half, index, numbers.size))


def _fc(builder: ir.IRBuilder, strip: ir.Value, known: _Entered, tiles: Tiles) -> None:
    multiply(builder, strip, known.fc, tiles, known.both, known.x, (known.count, known.rows, known.size))
    begin = builder.mul(strip, known.fc.width(builder))
    with builder.if_then(builder.icmp_unsigned("!=", known.biased, i64(0))), counting(builder, known.count) as row:
        line = at(builder, known.x, builder.mul(row, known.size), WORD)
        with counting(builder, builder.add(begin, known.fc.width(builder)), begin, step=VECTOR) as offset:
            place, other = at(builder, line, offset), at(builder, known.bias, offset)
            write(builder, builder.fadd(read(builder, place, FLOATS), read(builder, other, FLOATS)), place)


def _say(
    builder: ir.IRBuilder,
    tiles: Tiles,
    numbers: Singles | Pairs,
    arguments: tuple[Lying, ...],
    results: tuple[Lying, Lying],
    rows: tuple[ir.Value, ir.Value],
) -> Part:
    """Logits of what leaves the layer; nothing to do without an output matrix."""
    (out, eps, output), (ready, logits), (count, all_rows) = arguments, results, rows
    weight, size = Weight.of(builder, output, numbers), ready.size(1)
    # addresses of a norm's scale and epsilon, which are not looked at
    given = Input(out.data, eps.data, eps.data, ready.data, i64(0), count, size)
    known = _Said(given, weight, logits.data, all_rows, logits.size(2))
    rounding, none = given.phase(builder, numbers), builder.icmp_unsigned("==", weight.strips, i64(0))
    phases = [
        Phase(builder.select(none, i64(0), rounding.tasks), rounding.task),
        Phase(weight.strips, functools.partial(_logits, tiles=tiles)),
    ]
    return Part(phases, builder.mul(count, weight.vectors(builder)), known)


def _logits(builder: ir.IRBuilder, strip: ir.Value, known: _Said, tiles: Tiles) -> None:
    sizes = known.given.count, known.rows, known.size
    multiply(builder, strip, known.output, tiles, known.given.ready, known.logits, sizes)
