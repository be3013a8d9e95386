"""Tree attention: `ops.base.Case` in float32, each kv head of each request a task of its own."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from eagle_jax.ops.attention_case import Case
from eagle_jax.ops.cpu.blocks import BLOCK, SUMS, WIDEST, Rows, Sight, see
from eagle_jax.ops.cpu.calls import Call, add_handler
from eagle_jax.ops.cpu.code import I32, I64, LANES, WORD, at, clamped, counting, i64, read, room, smaller, write
from eagle_jax.ops.cpu.signatures import Signature
from eagle_jax.ops.cpu.threads import Phase, share

NAME, WINDOWED = "eagle_jax_attention", "eagle_jax_attention_windowed"


def attend(case: Case) -> Float[Array, "b k r c"]:
    """The average over all that each row sees.

    Raises:
        NotImplementedError: the case is none of those that it is made for.
    """
    size = case.q.shape[-1]
    kinds = {part.dtype for part in (case.q, *case.fresh, *case.prefix)}
    if kinds != {jnp.dtype(jnp.float32)} or size % LANES or size > WIDEST:
        raise NotImplementedError(f"it computes in float32, with heads of a multiple of {LANES} up to {WIDEST}")
    if case.softcap is not None or case.named != case.fresh[0].shape[2]:
        raise NotImplementedError("it has no softcap, and a mask names all fresh rows")
    visible = jnp.pad(case.visible, ((0, 0), (0, 0), (0, -case.named % BLOCK)))
    given = [case.q, *case.fresh, visible.astype(jnp.int8), *case.prefix, case.length]
    name = NAME
    if case.first is not None:
        name, given = WINDOWED, [*given, case.first]
    sums = jax.ShapeDtypeStruct((*case.q.shape[:-1], 2, LANES), jnp.float32)
    return jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(case.q.shape, jnp.float32), sums])(*given)[0]


def names() -> list[str]:
    """Of the handlers."""
    return [NAME, WINDOWED]


def build(module: ir.Module) -> None:
    """Adds the handlers."""
    for name, windowed in ((NAME, False), (WINDOWED, True)):
        add_handler(module, name, _signature(windowed), functools.partial(_body, windowed=windowed))


def _signature(windowed: bool) -> Signature:
    """Rows r of each of k kv heads; m fresh rows, of which the mask names those of n nodes; u slots."""
    fresh, prefix = (
        dict.fromkeys(names, f"float32[b, k, {rows}, c]")
        for names, rows in ((("keys", "values"), "m"), (("prefix_keys", "prefix_values"), "u"))
    )
    arguments = {"q": "float32[b, k, r, c]", **fresh, "visible": "int8[b, n, p]", **prefix, "length": "int32[b]"}
    return Signature(
        arguments=arguments | ({"first": "int32[b, n]"} if windowed else {}),
        results={"y": "float32[b, k, r, c]", "sums": f"float32[b, k, r, 2, {LANES}]"},
        relations=["n >= 1", f"c % {LANES} == 0", f"c <= {WIDEST}", f"p % {LANES} == 0", "p >= m"],
    )


def _body(call: Call, windowed: bool) -> None:
    builder = call.builder
    q, keys, visible, old_keys = (call.arguments[index] for index in (0, 1, 3, 4))
    requests, heads, rows, size = (q.size(axis) for axis in range(4))
    fresh, slots, nodes, padded = keys.size(2), old_keys.size(2), visible.size(1), visible.size(2)
    tasks = builder.mul(requests, heads)
    numbers = builder.mul(builder.mul(tasks, rows), builder.mul(size, builder.add(slots, fresh)))
    data = [one.data for one in (*call.arguments, *call.results)]
    values = [*data, heads, rows, size, fresh, slots, nodes, padded]
    head = Phase(tasks, functools.partial(_head, windowed=windowed))
    share(call, [head], builder.lshr(numbers, i64(4)), values)


def _head(builder: ir.IRBuilder, index: ir.Value, values: Sequence[ir.Value], windowed: bool) -> None:
    """One kv head of one request."""
    *data, heads, count, size, fresh, slots, nodes, padded = values
    q, keys, values_, visible, old_keys, old_values, length, *first, out, sums = data
    request, row = builder.udiv(index, heads), builder.mul(size, i64(WORD))

    def of(base: ir.Value, lines: ir.Value, bytes_: ir.Value | int) -> ir.Value:
        """Where this head's part begins."""
        return at(builder, base, builder.mul(index, lines), bytes_)

    rows = Rows(of(q, count, row), of(out, count, row), of(sums, count, SUMS), count, size, nodes)
    rows.begin(builder)
    committed = clamped(builder, read(builder, at(builder, length, request, WORD), I32), slots)
    sight, low = Sight("all"), i64(0)
    if windowed:
        sight = Sight("window", at(builder, first[0], builder.mul(request, nodes), WORD))
        low = _first_block(builder, sight.told, nodes)
    see(builder, rows, of(old_keys, slots, row), of(old_values, slots, row), low, committed, sight)
    sight = Sight("mask", at(builder, visible, builder.mul(request, nodes), padded), padded)
    see(builder, rows, of(keys, fresh, row), of(values_, fresh, row), i64(0), fresh, sight)
    rows.end(builder)


def _first_block(builder: ir.IRBuilder, first: ir.Value, nodes: ir.Value) -> ir.Value:
    """Where the block begins that has the first slot that any node sees."""
    lowest = room(builder, 8)
    write(builder, i64(2**62), lowest)
    with counting(builder, nodes) as node:
        here = builder.sext(read(builder, at(builder, first, node, WORD), I32), I64)
        inside = builder.select(builder.icmp_signed("<", here, i64(0)), i64(0), here)
        write(builder, smaller(builder, inside, read(builder, lowest, I64)), lowest)
    return builder.and_(read(builder, lowest, I64), i64(-BLOCK))
