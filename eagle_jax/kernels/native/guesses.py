"""A chain of guesses of an EAGLE-1 head of one layer, as one operation: pass after pass while it is sure enough.

What `decoding.policy.SureChain` does with such a head and no noise. Level by level XLA would begin some dozen small
operations for each pass.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from llvmlite import ir

from eagle_jax.kernels.native import first_half, head_pass, largest
from eagle_jax.kernels.native.calls import Call, Lying, Placed, add_handler
from eagle_jax.kernels.native.code import (
    F32,
    FLOATS,
    I32,
    I64,
    LANES,
    WORD,
    at,
    counting,
    i64,
    read,
    repeating,
    room,
    write,
)
from eagle_jax.kernels.native.given import ChainOf, HeadWeights, Seen
from eagle_jax.kernels.native.lookup import Table
from eagle_jax.kernels.native.numbers import FLOATING, Pairs, Singles
from eagle_jax.kernels.native.parts import in_turn
from eagle_jax.kernels.native.threads import share

NAMES = {jnp.dtype(jnp.float32): "eagle_jax_chain_f32", jnp.dtype(jnp.bfloat16): "eagle_jax_chain_bf16"}
FIRST, BESIDE = 7, 5  # arguments before the weights, and results before those of a pass


def chain(given: ChainOf, weights: HeadWeights, seen: Seen) -> tuple[Float[Array, "1 d"], Int[Array, "1 d"]]:
    """Scores of the paths to `d` guesses, one below the other, and their tokens, of those that are drafted.

    Scores are added up along the path; -inf is no guess, and has token 0.

    Args:
        seen: turns for `d - 1` passes; nothing beside, and as many are visible.
    """
    steps, shape = seen.turns[0].shape[1], (1, 1, given.guess.shape[1])
    _, heads, _, size = seen.prefix[0].shape
    results = [
        *[jax.ShapeDtypeStruct((1, steps + 1), kind) for kind in (jnp.float32, jnp.int32)],
        jax.ShapeDtypeStruct(shape, jnp.float32),
        *[jax.ShapeDtypeStruct((1, heads, steps, size), jnp.float32)] * 2,
        *[jax.ShapeDtypeStruct(*kind) for kind in head_pass.made(shape, weights, seen)],
    ]
    numbers = [jnp.float32(number) for number in (given.sharpness, given.least, weights.eps)]
    asked = [given.guess, given.table, jnp.int32(given.table.dtype == jnp.bfloat16), given.ids, *numbers]
    arguments = [*asked, *head_pass.listed(weights), *first_half.given(seen, weights.factor)]
    scores, tokens, *_ = jax.ffi.ffi_call(NAMES[weights.fc.dtype], results)(*arguments)
    return scores, tokens


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
        given, made = FIRST + head_pass.WEIGHTS + first_half.GIVEN, BESIDE + head_pass.MADE
        add_handler(module, NAMES[self.dtype], body, arguments=given, results=made)


def _body(call: Call, numbers: Singles | Pairs) -> None:
    builder, arguments = call.builder, call.arguments
    guess, table, pairs, ids, sharpness, least, eps = arguments[:FIRST]
    weights, seen = arguments[FIRST : FIRST + head_pass.WEIGHTS], arguments[FIRST + head_pass.WEIGHTS :]
    scores, tokens, embedding, keys, values, *made = call.results
    cosines, sines, _, _, visible, *rest = seen
    lookup, count = Table.of(builder, table, pairs), scores.size(1)
    out, logits = made[:2]
    score, token, path, done = (room(builder, 8) for _ in range(4))
    _begin(builder, (scores, tokens), (guess, out))

    ranked = Placed(logits.data, (i64(1), logits.size(2)))
    found = [Placed(place, (i64(1), i64(1))) for place in (score, token)]
    given = [embedding, out, eps, *weights]

    def passed(steps: ir.Value, name: str) -> None:
        """One pass behind so many, or none and what is said of the root's feature; then its best token."""
        half = builder.mul(cosines.size(2), i64(WORD))
        turns = [Placed(at(builder, turn.data, steps, half), ()) for turn in (cosines, sines)]
        beside = [Placed(old.data, (i64(1), old.size(1), steps)) for old in (keys, values)]
        here: list[Lying] = [*turns, *beside, visible, *rest]
        parts = head_pass.parts(call.module, builder, given, here, made, numbers, apart=keys.size(2))
        best = largest.ranking(builder, [ranked, sharpness], found)
        said = [*parts, best] if name else [parts[-1], best]
        share(call, *in_turn(builder, said), name=name or "_root")

    def note() -> None:
        """A guess, if it is one, and the score of the path to it."""
        place, number = read(builder, done, I64), read(builder, score, F32)
        total = builder.fadd(read(builder, path, F32), number)
        write(builder, total, path)
        write(builder, total, at(builder, scores.data, place, WORD))
        write(builder, read(builder, token, I32), at(builder, tokens.data, place, WORD))
        write(builder, builder.add(place, i64(1)), done)

    write(builder, ir.Constant(F32, 0.0), path)
    write(builder, i64(0), done)
    passed(i64(0), "")
    note()
    with repeating(builder) as leave:
        place = read(builder, done, I64)
        further = builder.icmp_unsigned("<", place, count)
        sure = builder.fcmp_ordered(">", read(builder, path, F32), read(builder, least.data, F32))
        with builder.if_then(builder.not_(builder.and_(further, sure))):
            builder.branch(leave)
        lookup.take(builder, _target_id(builder, ids, read(builder, token, I32)), embedding.data)
        before = builder.sub(place, i64(1))
        passed(before, "_pass")
        _keep(builder, (keys, values), made[5:7], before)
        note()


def _begin(builder: ir.IRBuilder, found: tuple[Lying, Lying], features: tuple[Lying, Lying]) -> None:
    """No guesses, and the feature that the first pass reads."""
    (scores, tokens), (guess, out) = found, features
    with counting(builder, scores.size(1)) as place:
        write(builder, ir.Constant(F32, -math.inf), at(builder, scores.data, place, WORD))
        write(builder, ir.Constant(I32, 0), at(builder, tokens.data, place, WORD))
    with counting(builder, guess.size(1), step=LANES) as index:
        write(builder, read(builder, at(builder, guess.data, index, WORD), FLOATS), at(builder, out.data, index, WORD))


def _target_id(builder: ir.IRBuilder, ids: Lying, token: ir.Value) -> ir.Value:
    """Of a drafted token; itself where there are no ids."""
    found, index = room(builder, 8), builder.sext(token, I64)
    write(builder, index, found)
    with builder.if_then(builder.icmp_unsigned("!=", ids.size(0), i64(0))):
        write(builder, builder.sext(read(builder, at(builder, ids.data, index, WORD), I32), I64), found)
    return read(builder, found, I64)


def _keep(builder: ir.IRBuilder, beside: tuple[Lying, Lying], own: Sequence[Lying], place: ir.Value) -> None:
    """A pass's keys and values are beside those of the next."""
    for old, new in zip(beside, own, strict=True):
        with counting(builder, old.size(1)) as head, counting(builder, old.size(3), step=LANES) as index:
            row = builder.add(builder.mul(head, old.size(2)), place)
            here = at(builder, old.data, builder.add(builder.mul(row, old.size(3)), index), WORD)
            there = at(builder, new.data, builder.add(builder.mul(head, old.size(3)), index), WORD)
            write(builder, read(builder, there, FLOATS), here)
