"""The first half of a decoder layer, `y = residual + o(attention(qkv(norm(x))))`, as one operation."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.ops.cpu.blocks import BLOCK, SUMS, WIDEST, Rows, Sight, see
from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I32,
    LANES,
    WORD,
    at,
    clamped,
    counting,
    everywhere,
    i64,
    read,
    write,
)
from eagle_jax.ops.cpu.given import Mixing, Seen
from eagle_jax.ops.cpu.math import fma
from eagle_jax.ops.cpu.numbers import FLOATING, Pairs, Singles
from eagle_jax.ops.cpu.parts import Input, Weight, clear, multiply, valid_rows
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share
from eagle_jax.ops.cpu.tiles import Tiles
from eagle_jax.ops.types import KV

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_mixing_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_mixing_bf16"}


def mixing(
    residual: Float[Array, "b n h"], x: Float[Array, "b n i"], eps: float, weights: Mixing, seen: Seen, factor: float
) -> tuple[Float[Array, "b n h"], KV]:
    """The half layer of float32 rows, and the keys and values of its own; zeros for rows that are not wanted.

    Args:
        eps: of the norm.
        factor: scores are multiplied by it.
    """
    dtype = weights.qkv.dtype
    results = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in made(residual.shape, x.shape, weights, seen)]
    rows = [x, residual, jnp.float32(eps), *weights]
    y, k, v, *_ = jax.ffi.ffi_call(NAMES[dtype], results)(*rows, *given(seen, factor))
    return y, (k, v)


def given(seen: Seen, factor: float) -> list[Array]:
    """The last arguments."""
    # reads of 16 may begin at any of its bytes
    visible = jnp.pad(seen.visible, ((0, 0), (0, 0), (0, -seen.visible.shape[2] % BLOCK + BLOCK))).astype(jnp.int8)
    return [*seen.turns, *seen.beside, visible, *seen.prefix, seen.length, jnp.float32(factor), seen.wanted]


def made(
    residual: tuple[int, ...], x: tuple[int, ...], weights: Mixing, seen: Seen
) -> list[tuple[tuple[int, ...], DTypeLike]]:
    """Shapes and dtypes of the results for rows of these shapes: outputs, keys, values, and room."""
    (batch, nodes, inputs), (_, heads, _, size), dtype = x, seen.prefix[0].shape, weights.qkv.dtype
    rows, outputs, mixed = batch * nodes, weights.qkv.size // inputs, weights.o.size // residual[2]
    queries = outputs // size // heads - 2
    return [
        (residual, jnp.float32),
        *[((batch, heads, nodes, size), jnp.float32)] * 2,
        ((rows, inputs), dtype),
        ((rows, outputs), jnp.float32),
        *[((batch, heads, queries * nodes, size), jnp.float32)] * 2,
        ((batch, heads, queries * nodes, 2, LANES), jnp.float32),
        ((rows, mixed), dtype),
    ]


def names() -> list[str]:
    """Of the handlers."""
    return list(NAMES.values())


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for dtype, name in NAMES.items():
        numbers = FLOATING[dtype]
        add_handler(module, name, _signature(dtype.name, numbers.inputs), functools.partial(_body, numbers=numbers))


def _signature(dtype: str, pair: int) -> Signature:
    """Of weights with `pair` inputs in a word. Per kv head k: g rows of queries, n of each; q outputs of qkv; v inputs
    of o; m rows of earlier draft levels, u slots; a is half of a head.
    """
    rows, beside, prefix = (f"float32[b, k, {count}, c]" for count in ("n", "m", "u"))
    return Signature(
        arguments={
            "x": "float32[b, n, i]",
            "residual": "float32[b, n, h]",
            "eps": "float32[]",
            "scale": "float32[z]",
            "qkv": f"{dtype}[s, j, l]",
            "o": f"{dtype}[t, e, d]",
            "cosines": "float32[b, n, a]",
            "sines": "float32[b, n, a]",
            "keys_beside": beside,
            "values_beside": beside,
            "visible": "int8[b, n, p]",
            "prefix_keys": prefix,
            "prefix_values": prefix,
            "length": "int32[b]",
            "factor": "float32[]",
            "num_valid": "int32[]",
        },
        results={
            "y": "float32[b, n, h]",
            "keys": rows,
            "values": rows,
            "ready": f"{dtype}[r, i]",
            "projected": "float32[r, q]",
            "turned": "float32[b, k, g, c]",
            "mixed": "float32[b, k, g, c]",
            "sums": f"float32[b, k, g, 2, {LANES}]",
            "joined": f"{dtype}[r, v]",
        },
        relations=[
            "b >= 1",
            "n >= 1",
            "r == b * n",
            "c == 2 * a",
            f"a % {LANES} == 0",
            f"c <= {WIDEST}",
            "z == 0 or z == i",
            f"i % {LANES} == 0",
            f"i == {pair} * j",
            f"l % {pair * LANES} == 0",
            f"s * l == {pair} * q",
            "g % n == 0",
            "q * n == k * c * (g + 2 * n)",
            "v * n == k * c * g",
            f"v == {pair} * e",
            f"d % {pair * LANES} == 0",
            f"t * d == {pair} * h",
            f"p >= m + n + {LANES - 1}",
        ],
    )


class _Sizes(NamedTuple):
    """Numbers, not bytes.

    Attributes:
        wanted: nodes of each request that are.
        queries: of a kv head.
        beside: fresh rows before their own.
        padded: bytes of a row of what is visible.
    """

    requests: ir.Value
    nodes: ir.Value
    wanted: ir.Value
    heads: ir.Value
    queries: ir.Value
    size: ir.Value
    beside: ir.Value
    slots: ir.Value
    padded: ir.Value
    outputs: ir.Value
    residual: ir.Value


class _Data(NamedTuple):
    """Addresses."""

    residual: ir.Value
    cosines: ir.Value
    sines: ir.Value
    keys_beside: ir.Value
    values_beside: ir.Value
    visible: ir.Value
    old_keys: ir.Value
    old_values: ir.Value
    length: ir.Value
    factor: ir.Value
    y: ir.Value
    keys: ir.Value
    values: ir.Value
    projected: ir.Value
    turned: ir.Value
    mixed: ir.Value
    sums: ir.Value
    joined: ir.Value


class _Known(NamedTuple):
    """What tasks know."""

    given: Input
    qkv: Weight
    o: Weight
    data: _Data
    sizes: _Sizes


def _body(call: Call, numbers: Singles | Pairs) -> None:
    builder = call.builder
    x, residual, eps, scale, qkv, o, *rest = call.arguments
    cosines, sines, beside, values_beside, visible, old_keys, old_values, length, factor, wanted = rest
    y, keys, values, ready, projected, turned, mixed, sums, joined = call.results
    requests, nodes = x.size(0), x.size(1)
    # rows of several requests that are not padding do not follow each other: then all are computed
    rows, alone = builder.mul(requests, nodes), builder.icmp_unsigned("==", requests, i64(1))
    count = builder.select(alone, valid_rows(builder, wanted, rows), rows)
    given = Input(x.data, scale.data, eps.data, ready.data, scale.size(0), count, x.size(2))
    of_qkv, of_o = (Weight.of(builder, weight, numbers) for weight in (qkv, o))
    addresses = [residual, cosines, sines, beside, values_beside, visible, old_keys, old_values, length, factor]
    addresses += [y, keys, values, projected, turned, mixed, sums, joined]
    sizes = _Sizes(
        requests,
        nodes,
        builder.udiv(count, requests),
        heads=old_keys.size(1),
        queries=builder.udiv(turned.size(2), nodes),
        size=old_keys.size(3),
        beside=beside.size(2),
        slots=old_keys.size(2),
        padded=visible.size(2),
        outputs=projected.size(1),
        residual=residual.size(2),
    )
    known = _Known(given, of_qkv, of_o, _Data(*(buffer.data for buffer in addresses)), sizes)
    tiles = Tiles(call.module, numbers, fetching=True)
    phases = [
        given.phase(builder, numbers),
        Phase(of_qkv.strips, functools.partial(_project, tiles=tiles)),
        Phase(builder.mul(requests, sizes.heads), functools.partial(_mix, numbers=numbers)),
        Phase(of_o.strips, functools.partial(_outputs, tiles=tiles)),
    ]
    vectors = builder.add(of_qkv.vectors(builder), of_o.vectors(builder))
    seen = builder.add(builder.add(sizes.slots, sizes.beside), nodes)
    scored = builder.mul(builder.mul(sizes.heads, sizes.queries), builder.mul(sizes.size, seen))
    share(call, phases, builder.mul(count, builder.add(vectors, builder.lshr(scored, i64(4)))), known)


def _project(builder: ir.IRBuilder, strip: ir.Value, known: _Known, tiles: Tiles) -> None:
    count = known.given.count
    multiply(
        builder, strip, known.qkv, tiles, known.given.ready, known.data.projected, (count, count, known.sizes.outputs)
    )


def _mix(builder: ir.IRBuilder, index: ir.Value, known: _Known, numbers: Singles | Pairs) -> None:
    """One kv head of one request."""
    data, sizes = known.data, known.sizes
    request, row = builder.udiv(index, sizes.heads), builder.mul(sizes.size, i64(WORD))
    count, most = (builder.mul(sizes.queries, nodes) for nodes in (sizes.wanted, sizes.nodes))

    def of(base: ir.Value, lines: ir.Value, bytes_: ir.Value | int) -> ir.Value:
        """Where this head's part begins."""
        return at(builder, base, builder.mul(index, lines), bytes_)

    keys, values = (of(base, sizes.nodes, row) for base in (data.keys, data.values))
    queries, mixed = (of(base, most, row) for base in (data.turned, data.mixed))
    _turn(builder, index, known, queries, keys, values)
    rows = Rows(queries, mixed, of(data.sums, most, SUMS), count, sizes.size, sizes.wanted)
    rows.begin(builder)
    committed = clamped(builder, read(builder, at(builder, data.length, request, WORD), I32), sizes.slots)
    old_keys, old_values = (of(base, sizes.slots, row) for base in (data.old_keys, data.old_values))
    see(builder, rows, old_keys, old_values, i64(0), committed, Sight("all"))
    visible = at(builder, data.visible, builder.mul(request, sizes.nodes), sizes.padded)
    keys_beside, values_beside = (of(base, sizes.beside, row) for base in (data.keys_beside, data.values_beside))
    named = Sight("mask", visible, sizes.padded)
    see(builder, rows, keys_beside, values_beside, i64(0), sizes.beside, named)
    own = Sight("mask", at(builder, visible, sizes.beside), sizes.padded)
    see(builder, rows, keys, values, i64(0), sizes.wanted, own)
    rows.end(builder)
    unwanted = builder.mul(sizes.wanted, row), builder.mul(sizes.nodes, row)
    for base in (keys, values):
        clear(builder, base, *unwanted)
    _join(builder, index, known, mixed, numbers)


def _turn(
    builder: ir.IRBuilder, index: ir.Value, known: _Known, queries: ir.Value, keys: ir.Value, values: ir.Value
) -> None:
    """Projected rows become queries, rotated and scaled, keys, rotated, and values."""
    data, sizes = known.data, known.sizes
    request, head = builder.udiv(index, sizes.heads), builder.urem(index, sizes.heads)
    half, row = builder.lshr(sizes.size, i64(1)), builder.mul(sizes.size, i64(WORD))
    first = builder.mul(head, builder.mul(builder.add(sizes.queries, i64(2)), sizes.size))
    factor = everywhere(builder, read(builder, data.factor, F32))
    with counting(builder, sizes.wanted) as node:
        token = builder.add(builder.mul(request, sizes.nodes), node)
        line = at(builder, data.projected, builder.add(builder.mul(token, sizes.outputs), first), WORD)
        cosines, sines = (at(builder, base, builder.mul(token, half), WORD) for base in (data.cosines, data.sines))

        def rotate(part: ir.Value, to: ir.Value, scaled: bool) -> None:
            with counting(builder, half, step=LANES) as lane:
                cos, sin = (read(builder, at(builder, base, lane, WORD), FLOATS) for base in (cosines, sines))
                upper = builder.add(lane, half)
                a, b = (read(builder, at(builder, part, place, WORD), FLOATS) for place in (lane, upper))
                low = fma(builder, a, cos, builder.fneg(builder.fmul(b, sin)))
                high = fma(builder, b, cos, builder.fmul(a, sin))
                for number, place in ((low, lane), (high, upper)):
                    number = builder.fmul(number, factor) if scaled else number
                    write(builder, number, at(builder, to, place, WORD))

        with counting(builder, sizes.queries) as query:
            to = at(builder, queries, builder.add(builder.mul(query, sizes.wanted), node), row)
            rotate(at(builder, line, query, row), to, scaled=True)
        rotate(at(builder, line, sizes.queries, row), at(builder, keys, node, row), scaled=False)
        value, to = at(builder, line, builder.add(sizes.queries, i64(1)), row), at(builder, values, node, row)
        with counting(builder, sizes.size, step=LANES) as lane:
            write(builder, read(builder, at(builder, value, lane, WORD), FLOATS), at(builder, to, lane, WORD))


def _join(builder: ir.IRBuilder, index: ir.Value, known: _Known, mixed: ir.Value, numbers: Singles | Pairs) -> None:
    """What a head's queries have mixed goes side by side, as the output matrix reads it."""
    sizes = known.sizes
    request, head = builder.udiv(index, sizes.heads), builder.urem(index, sizes.heads)
    of_all = builder.mul(builder.mul(sizes.heads, sizes.queries), sizes.size)
    with counting(builder, sizes.wanted) as node, counting(builder, sizes.queries) as query:
        token = builder.add(builder.mul(request, sizes.nodes), node)
        column = builder.mul(builder.add(builder.mul(head, sizes.queries), query), sizes.size)
        to = at(builder, known.data.joined, builder.add(builder.mul(token, of_all), column), numbers.size)
        line = builder.mul(builder.add(builder.mul(query, sizes.wanted), node), sizes.size)
        with counting(builder, sizes.size, step=LANES) as lane:
            floats = read(builder, at(builder, mixed, builder.add(line, lane), WORD), FLOATS)
            write(builder, numbers.of(builder, floats), at(builder, to, lane, numbers.size))


def _outputs(builder: ir.IRBuilder, strip: ir.Value, known: _Known, tiles: Tiles) -> None:
    data, sizes = known.data, known.sizes
    rows = known.given.count, builder.mul(sizes.requests, sizes.nodes)
    multiply(builder, strip, known.o, tiles, data.joined, data.y, (*rows, sizes.residual), residual=data.residual)
