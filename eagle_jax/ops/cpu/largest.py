"""The largest numbers of rows, and what they are as log-probabilities, which drafting and drawing rank tokens by."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import (
    F32,
    FLOATS,
    I16,
    I32,
    I64,
    LANES,
    VECTOR,
    WORD,
    at,
    counting,
    declared,
    every,
    everywhere,
    i64,
    read,
    repeating,
    room,
    write,
)
from eagle_jax.ops.cpu.math import exp_over, summed
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share

NAME = "eagle_jax_best"
SIGNATURE = Signature(
    arguments={"x": "float32[r, v]", "sharpness": "float32[]"},
    results={"values": "float32[r, k]", "ids": "int32[r, k]"},
    relations=["k >= 1", "v >= k"],
)
LOOKS, POWERS = 1, 8  # vectors multiplied that a look at one takes as long as, and the exponentials of one


def best(x: Float[Array, "r v"], count: int, sharpness: float) -> tuple[Float[Array, "r k"], Int[Array, "r k"]]:
    """The `count` largest of each row of float32, largest first and of equal ones the first, and where they are.

    Args:
        sharpness: above 0 makes them `log_softmax(sharpness * x)`; all are -inf where that is not to be had. 0 does
            nothing.

    nan counts as -inf.
    """
    if not 1 <= count <= x.shape[1]:
        raise ValueError(f"the {count} largest of {x.shape[1]} numbers; ask for one at least, and at most so many")
    shape = (x.shape[0], count)
    made = [jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)]
    values, ids = jax.ffi.ffi_call(NAME, made, vmap_method="sequential")(x, jnp.float32(sharpness))
    return values, ids


def names() -> list[str]:
    """Of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, SIGNATURE, _body)


class _Known(NamedTuple):
    """What tasks know: addresses, and how many numbers a row has and how many are wanted."""

    x: ir.Value
    sharpness: ir.Value
    values: ir.Value
    ids: ir.Value
    size: ir.Value
    count: ir.Value


class _Found(NamedTuple):
    """Where a row's largest numbers are kept, and how many there may be."""

    values: ir.Value
    ids: ir.Value
    count: ir.Value


def _body(call: Call) -> None:
    builder, (x, sharpness), (values, ids) = call.builder, call.arguments, call.results
    known = _Known(x.data, sharpness.data, values.data, ids.data, x.size(1), values.size(1))
    each = builder.select(_is_wanted(builder, known), i64(LOOKS + POWERS), i64(LOOKS))
    vectors = builder.udiv(builder.mul(x.size(0), x.size(1)), i64(LANES))
    share(call, [Phase(x.size(0), _row)], builder.mul(vectors, each), known)


def _is_wanted(builder: ir.IRBuilder, known: _Known) -> ir.Value:
    """Whether log-probabilities are."""
    return builder.fcmp_unordered("!=", read(builder, known.sharpness, F32), ir.Constant(F32, 0.0))


def _row(builder: ir.IRBuilder, index: ir.Value, known: _Known) -> None:
    line = at(builder, known.x, builder.mul(index, known.size), WORD)
    values, ids = (at(builder, base, builder.mul(index, known.count), WORD) for base in (known.values, known.ids))
    found = _Found(values, ids, known.count)
    with counting(builder, known.count) as place:
        write(builder, ir.Constant(F32, math.nan), at(builder, found.values, place, WORD))  # nothing yet
    last = at(builder, found.values, builder.sub(known.count, i64(1)), WORD)

    def look(first: ir.Value, here: ir.Value) -> None:
        """Takes those of 16 numbers that are among the largest so far."""
        numbers = _without_nan(builder, read(builder, here, FLOATS), every(-math.inf))
        above = builder.fcmp_unordered(">", numbers, everywhere(builder, read(builder, last, F32)))
        some = builder.icmp_unsigned("!=", builder.bitcast(above, I16), ir.Constant(I16, 0))
        with builder.if_then(some), counting(builder, i64(LANES)) as lane:
            number = _without_nan(
                builder, read(builder, at(builder, here, lane, WORD), F32), ir.Constant(F32, -math.inf)
            )
            with builder.if_then(builder.fcmp_unordered(">", number, read(builder, last, F32))):
                _insert(builder, found, number, builder.add(first, lane))

    _by_vectors(builder, line, known.size, look)
    with builder.if_then(_is_wanted(builder, known)):
        _as_scores(builder, line, known, found)


def _by_vectors(
    builder: ir.IRBuilder, line: ir.Value, size: ir.Value, then: Callable[[ir.Value, ir.Value], None]
) -> None:
    """`then(first, address)` for every 16 numbers; the last ones are filled up with -inf, elsewhere."""
    whole = builder.sub(size, builder.urem(size, i64(LANES)))
    with counting(builder, whole, step=LANES) as first:
        then(first, at(builder, line, first, WORD))
    rest = room(builder, VECTOR)
    with builder.if_then(builder.icmp_unsigned("<", whole, size)):
        write(builder, every(-math.inf), rest)
        with counting(builder, size, whole) as index:
            number = read(builder, at(builder, line, index, WORD), F32)
            write(builder, number, at(builder, rest, builder.sub(index, whole), WORD))
        then(whole, rest)


def _insert(builder: ir.IRBuilder, found: _Found, number: ir.Value, index: ir.Value) -> None:
    """Puts a number behind those that are not smaller; the last one falls out."""
    place = room(builder, 8)
    write(builder, builder.sub(found.count, i64(1)), place)
    with repeating(builder) as leave:
        here = read(builder, place, I64)
        with builder.if_then(builder.icmp_unsigned("==", here, i64(0))):
            builder.branch(leave)
        before = builder.sub(here, i64(1))
        other = read(builder, at(builder, found.values, before, WORD), F32)
        with builder.if_then(builder.fcmp_ordered(">=", other, number)):
            builder.branch(leave)
        write(builder, other, at(builder, found.values, here, WORD))
        write(builder, read(builder, at(builder, found.ids, before, WORD), I32), at(builder, found.ids, here, WORD))
        write(builder, before, place)
    here = read(builder, place, I64)
    write(builder, number, at(builder, found.values, here, WORD))
    write(builder, builder.trunc(index, I32), at(builder, found.ids, here, WORD))


def _as_scores(builder: ir.IRBuilder, line: ir.Value, known: _Known, found: _Found) -> None:
    """What was found becomes `sharpness * (x - largest) - log(sum(exp(sharpness * (x - largest))))`."""
    sharpness, top = read(builder, known.sharpness, F32), read(builder, found.values, F32)
    total, nothing = room(builder, VECTOR), every(0.0)
    write(builder, nothing, total)

    def add(first: ir.Value, here: ir.Value) -> None:
        below = builder.fsub(read(builder, here, FLOATS), everywhere(builder, top))
        power = exp_over(builder, builder.fmul(below, everywhere(builder, sharpness)), nothing)
        write(builder, builder.fadd(read(builder, total, FLOATS), power), total)

    _by_vectors(builder, line, known.size, add)
    log = declared(builder.module, "llvm.log.f32", ir.FunctionType(F32, [F32]))
    log_total = builder.call(log, [summed(builder, read(builder, total, FLOATS))])
    with counting(builder, known.count) as place:
        here = at(builder, found.values, place, WORD)
        score = builder.fmul(builder.fsub(read(builder, here, F32), top), sharpness)
        score = builder.fsub(score, log_total)
        write(builder, _without_nan(builder, score, ir.Constant(F32, -math.inf)), here)


def _without_nan(builder: ir.IRBuilder, numbers: ir.Value, instead: ir.Constant) -> ir.Value:
    return builder.select(builder.fcmp_ordered("ord", numbers, numbers), numbers, instead)
