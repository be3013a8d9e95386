"""Top-k of rows, as logits or log-probabilities: drafting and sampling rank tokens by it."""

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
    alloca,
    at,
    constant,
    declare,
    for_range,
    forever,
    i64,
    read,
    splat,
    write,
)
from eagle_jax.ops.cpu.math import scaled_exp, sum_lanes
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, run_phases

NAME = "eagle_jax_top_k"
SIGNATURE = Signature(
    arguments={"x": "float32[r, v]", "logit_scale": "float32[]"},
    results={"values": "float32[r, k]", "ids": "int32[r, k]"},
    relations=["k >= 1", "v >= k"],
)
COMPARE_COST, EXP_COST = 1, 8  # of a vector, in multiplied vectors


def top_k(x: Float[Array, "r v"], count: int, logit_scale: float) -> tuple[Float[Array, "r k"], Int[Array, "r k"]]:
    """Returns the `count` largest values of each row and their indices, largest first, of equal ones the lowest index.

    NaN counts as -inf.

    Args:
        logit_scale: above 0 gives values of `log_softmax(logit_scale * x)`, or -inf where that is not finite; 0 gives
            x itself.
    """
    if not 1 <= count <= x.shape[1]:
        raise ValueError(f"the {count} largest of {x.shape[1]} numbers; ask for one at least, and at most so many")
    shape = (x.shape[0], count)
    results = [jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)]
    values, ids = jax.ffi.ffi_call(NAME, results, vmap_method="sequential")(x, jnp.float32(logit_scale))
    return values, ids


def names() -> list[str]:
    """Returns the names of the handlers."""
    return [NAME]


def build(module: ir.Module) -> None:
    """Adds the handler."""
    add_handler(module, NAME, SIGNATURE, _body)


class _Context(NamedTuple):
    """Addresses of the buffers, length of a row, and k."""

    x: ir.Value
    logit_scale: ir.Value
    values: ir.Value
    ids: ir.Value
    size: ir.Value
    count: ir.Value


class _Selected(NamedTuple):
    """Addresses of a row's largest values so far and of their indices, and k."""

    values: ir.Value
    ids: ir.Value
    count: ir.Value


def _body(call: Call) -> None:
    builder, (x, logit_scale), (values, ids) = call.builder, call.arguments, call.results
    context = _Context(x.data, logit_scale.data, values.data, ids.data, x.size(1), values.size(1))
    cost = builder.select(_wants_scores(builder, context), i64(COMPARE_COST + EXP_COST), i64(COMPARE_COST))
    vectors = builder.udiv(builder.mul(x.size(0), x.size(1)), i64(LANES))
    run_phases(call, [Phase(x.size(0), _row)], builder.mul(vectors, cost), context)


def _wants_scores(builder: ir.IRBuilder, context: _Context) -> ir.Value:
    """Returns whether log-probabilities are asked for."""
    return builder.fcmp_unordered("!=", read(builder, context.logit_scale, F32), ir.Constant(F32, 0.0))


def _row(builder: ir.IRBuilder, index: ir.Value, context: _Context) -> None:
    row_address = at(builder, context.x, builder.mul(index, context.size), WORD)
    values, ids = (at(builder, base, builder.mul(index, context.count), WORD) for base in (context.values, context.ids))
    selected = _Selected(values, ids, context.count)
    with for_range(builder, context.count) as position:
        write(builder, ir.Constant(F32, math.nan), at(builder, selected.values, position, WORD))  # empty
    smallest = at(builder, selected.values, builder.sub(context.count, i64(1)), WORD)

    def consider(first: ir.Value, address: ir.Value) -> None:
        """Inserts those of 16 values that are among the largest so far."""
        values_ = _without_nan(builder, read(builder, address, FLOATS), constant(-math.inf))
        is_larger = builder.fcmp_unordered(">", values_, splat(builder, read(builder, smallest, F32)))
        any_larger = builder.icmp_unsigned("!=", builder.bitcast(is_larger, I16), ir.Constant(I16, 0))
        with builder.if_then(any_larger), for_range(builder, i64(LANES)) as lane:
            value = _without_nan(
                builder, read(builder, at(builder, address, lane, WORD), F32), ir.Constant(F32, -math.inf)
            )
            with builder.if_then(builder.fcmp_unordered(">", value, read(builder, smallest, F32))):
                _insert(builder, selected, value, builder.add(first, lane))

    _for_vectors(builder, row_address, context.size, consider)
    with builder.if_then(_wants_scores(builder, context)):
        _as_scores(builder, row_address, context, selected)


def _for_vectors(
    builder: ir.IRBuilder, row_address: ir.Value, size: ir.Value, visit: Callable[[ir.Value, ir.Value], None]
) -> None:
    """Calls `visit(first, address)` for every 16 values; the last vector is a copy, padded with -inf."""
    num_full = builder.sub(size, builder.urem(size, i64(LANES)))
    with for_range(builder, num_full, step=LANES) as first:
        visit(first, at(builder, row_address, first, WORD))
    padded = alloca(builder, VECTOR)
    with builder.if_then(builder.icmp_unsigned("<", num_full, size)):
        write(builder, constant(-math.inf), padded)
        with for_range(builder, size, num_full) as index:
            value = read(builder, at(builder, row_address, index, WORD), F32)
            write(builder, value, at(builder, padded, builder.sub(index, num_full), WORD))
        visit(num_full, padded)


def _insert(builder: ir.IRBuilder, selected: _Selected, value: ir.Value, index: ir.Value) -> None:
    """Inserts a value after those that are not smaller, and drops the last one."""
    position = alloca(builder, 8)
    write(builder, builder.sub(selected.count, i64(1)), position)
    with forever(builder) as leave:
        address = read(builder, position, I64)
        with builder.if_then(builder.icmp_unsigned("==", address, i64(0))):
            builder.branch(leave)
        before = builder.sub(address, i64(1))
        other = read(builder, at(builder, selected.values, before, WORD), F32)
        with builder.if_then(builder.fcmp_ordered(">=", other, value)):
            builder.branch(leave)
        write(builder, other, at(builder, selected.values, address, WORD))
        write(
            builder,
            read(builder, at(builder, selected.ids, before, WORD), I32),
            at(builder, selected.ids, address, WORD),
        )
        write(builder, before, position)
    address = read(builder, position, I64)
    write(builder, value, at(builder, selected.values, address, WORD))
    write(builder, builder.trunc(index, I32), at(builder, selected.ids, address, WORD))


def _as_scores(builder: ir.IRBuilder, row_address: ir.Value, context: _Context, selected: _Selected) -> None:
    """Replaces the values by `logit_scale * (x - max) - log(sum(exp(logit_scale * (x - max))))`."""
    logit_scale, maximum_ = read(builder, context.logit_scale, F32), read(builder, selected.values, F32)
    total, zero = alloca(builder, VECTOR), constant(0.0)
    write(builder, zero, total)

    def add(first: ir.Value, address: ir.Value) -> None:
        difference = builder.fsub(read(builder, address, FLOATS), splat(builder, maximum_))
        exp = scaled_exp(builder, builder.fmul(difference, splat(builder, logit_scale)), zero)
        write(builder, builder.fadd(read(builder, total, FLOATS), exp), total)

    _for_vectors(builder, row_address, context.size, add)
    log = declare(builder.module, "llvm.log.f32", ir.FunctionType(F32, [F32]))
    log_total = builder.call(log, [sum_lanes(builder, read(builder, total, FLOATS))])
    with for_range(builder, context.count) as position:
        address = at(builder, selected.values, position, WORD)
        score = builder.fmul(builder.fsub(read(builder, address, F32), maximum_), logit_scale)
        score = builder.fsub(score, log_total)
        write(builder, _without_nan(builder, score, ir.Constant(F32, -math.inf)), address)


def _without_nan(builder: ir.IRBuilder, values_: ir.Value, replacement: ir.Constant) -> ir.Value:
    return builder.select(builder.fcmp_ordered("ord", values_, values_), values_, replacement)
