"""The loop: draft a tree, check it in one target pass, commit what the target drew.

Read `step` from top to bottom and you have read the method. Plain decoding is the same loop with a drafter that
proposes nothing; generating in one go and streaming are the same `advance` with different limits.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding import sampling
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.state import BatchParams, DecodeState, Reading
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.decoding.verify import Accepted, walk
from eagle_jax.drafters.base import Checked, Drafter, Observed, View
from eagle_jax.models.attention_inputs import num_valid
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import causal
from eagle_jax.models.target import PADDING_POSITION, Output, Target
from eagle_jax.sharding import Sharding, constrain, spread
from eagle_jax.workarounds import loop_options


def step(target: Target, drafter: Drafter, params: BatchParams, state: DecodeState, mode: Sampling) -> DecodeState:
    """One step for every row; rows that are done compute along and change nothing."""
    height = drafter.shape.depth
    noise = _noise(target, params, state.length, height + 1, mode)
    tree, draft = draft_tree(target, drafter, params, state, noise, mode)
    ancestors = tree.ancestors
    output, logits = verify_tree(target, drafter, state, tree, ancestors)

    with jax.named_scope("accept"):
        noise_by_node = None if noise is None else sampling.at_depth(noise, depth_below(ancestors))
        draws = sampling.draw(logits, noise_by_node, params.settings, mode)
        accepted, stopped = _until_stop(walk(tree, draws, height, ancestors), params, state)
        nodes, count = accepted.nodes, accepted.count

    with jax.named_scope("observe"):
        observed = Observed(
            start=state.length,
            count=count,
            tokens=jnp.take_along_axis(tree.tokens, nodes, axis=1),
            following=accepted.tokens,
            hidden=_rows(output.hidden, nodes),
            taps=tuple(_rows(tap, nodes) for tap in output.taps),
            checked=Checked(tree=tree, logits=logits, draws=draws),
        )
        draft = drafter.observe(target, draft, observed)

    with jax.named_scope("commit"):
        steps = state.steps + 1
        committed_at_step = jnp.full_like(accepted.tokens, steps)
        following = DecodeState(
            tokens=_append(state.tokens, accepted.tokens, state.known),
            length=state.length + count,
            done=state.done | stopped | (state.known + count >= params.limit),
            stopped=state.stopped | stopped,
            cache=state.cache.commit(output.kv, nodes, count),
            draft=draft,
            steps=steps,
            committed_at_step=_append(state.committed_at_step, committed_at_step, state.known),
            logprobs=_append_logprobs(state, logits, accepted),
        )
        return constrain(following)


@jax.named_scope("draft")
def draft_tree(
    target: Target, drafter: Drafter, params: BatchParams, state: DecodeState, noise: Any, mode: Sampling
) -> tuple[Tree, Any]:
    """The drafter's tree and its new state. `noise[b d v]` is that of the positions after `length`; None for greedy."""
    view = View(tokens=state.tokens, length=state.length, noise=noise, settings=params.settings)
    tree, draft = drafter.propose(target, state.draft, view, mode)
    # an invalid node may hold any number; one beyond the target's vocabulary would spoil the whole forward pass
    tokens = jnp.clip(tree.tokens, 0, target.config.vocab_size - 1)
    return dataclasses.replace(tree, tokens=jnp.where(tree.valid, tokens, 0)), draft


@jax.named_scope("verify")
def verify_tree(
    target: Target, drafter: Drafter, state: DecodeState, tree: Tree, ancestors: Bool[Array, "b n n"]
) -> tuple[Output, Float[Array, "b n v"]]:
    """The target's forward pass over a tree, and its logits at every node."""
    positions = jnp.where(tree.valid, state.length[:, None] + depth_below(ancestors), PADDING_POSITION)
    output = target.forward(tree.tokens, positions, ancestors, state.cache, drafter.taps)
    return output, target.logits(output.hidden, num_valid(tree.valid))


@spread
def prefill(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    *,
    mode: Sampling,
    slots: int,
    chunk: int,
    logprobs: bool,
    over: Sharding | None = None,
) -> DecodeState:
    """Reads the prompts (right-padded in `tokens`), chunk by chunk, and draws each row's first token.

    A chunk is a tree that happens to be a chain, with every row accepted. One program serves all prompt lengths: the
    chunks are a device loop up to the longest prompt. `t` is more than `slots`, `slots` at least the longest prompt
    rounded up to chunks. `over` says where everything lies when there are several devices.

    It is `open_prompts`, `read_prompts` to the end and `first_tokens`, which a server runs one by one
    (their `over` is for `spread`).
    """
    reading = open_prompts(target, drafter, params, slots=slots)
    reading = read_prompts(target, drafter, params, tokens, reading, chunk=chunk)
    return first_tokens(target, drafter, params, tokens, reading, mode=mode, logprobs=logprobs)


def open_prompts(
    target: Target, drafter: Drafter, params: BatchParams, *, slots: int, over: Sharding | None = None
) -> Reading:
    """Caches with room for `slots` tokens, and nothing read."""
    batch = len(params.limit)
    cache = target.empty_cache(batch, slots)
    cache = Cache(k=cache.k, v=cache.v, length=cache.length, rope_length=jnp.asarray(params.prompt_length))
    cache, draft = constrain((cache, drafter.init(target, batch, slots)))
    return Reading(chunks=jnp.zeros((), jnp.int32), cache=cache, draft=draft, last=_last_rows(target, drafter, batch))


def read_prompts(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    reading: Reading,
    until: Int[Array, ""] | None = None,
    *,
    chunk: int,
    over: Sharding | None = None,
) -> Reading:
    """Reads on to the end of the longest prompt, or until `until` chunks are read."""
    lengths, batch = jnp.asarray(params.prompt_length), tokens.shape[0]

    def unread(reading: Reading) -> Bool[Array, ""]:
        left = reading.chunks * chunk < jnp.max(lengths)
        return left if until is None else left & (reading.chunks < until)

    def read(reading: Reading) -> Reading:
        index, cache, draft = reading.chunks, reading.cache, reading.draft
        start = jnp.full(batch, index * chunk, jnp.int32)
        here = jax.lax.dynamic_slice_in_dim(tokens, index * chunk, chunk + 1, axis=1)
        output, cache = _read_chunk(target, here[:, :chunk], start, lengths, cache, drafter.taps)
        # the last row of a prompt waits: what follows it is yet to be drawn
        observed = Observed(
            start=start,
            count=jnp.clip(lengths - 1 - start, 0, chunk),
            tokens=here[:, :chunk],
            following=here[:, 1:],
            hidden=output.hidden,
            taps=output.taps,
            more=True,
        )
        draft = drafter.observe(target, draft, observed)
        rows = (output.hidden, *output.taps)
        at = jnp.clip(lengths - 1 - start, 0, chunk - 1)[:, None]
        ends = ((lengths - 1) // chunk == index)[:, None, None]
        last = tuple(jnp.where(ends, _rows(row, at), old) for row, old in zip(rows, reading.last, strict=True))
        return Reading(chunks=index + 1, cache=cache, draft=draft, last=last)

    return jax.lax.while_loop(unread, read, reading)


def first_tokens(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    reading: Reading,
    *,
    mode: Sampling,
    logprobs: bool,
) -> DecodeState:
    """Draws each row's first token, once its prompt is read."""
    lengths, last = jnp.asarray(params.prompt_length), reading.last
    logits = target.logits(last[0])
    drawn = sampling.draw(logits, _noise(target, params, lengths - 1, 1, mode), params.settings, mode)
    observed = Observed(
        start=lengths - 1,
        count=jnp.ones_like(lengths),
        tokens=jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1),
        following=drawn,
        hidden=last[0],
        taps=tuple(last[1:]),
    )
    stopped = _is_stop(drawn, params)[:, 0]
    draft = drafter.observe(target, reading.draft, observed)
    state = _without_answers(tokens, reading.cache, draft, logprobs)
    return dataclasses.replace(
        state,
        tokens=_append(tokens, drawn, lengths),
        length=lengths,
        done=stopped | (lengths + 1 >= params.limit),
        stopped=stopped,
        logprobs=None if state.logprobs is None else _append(state.logprobs, _logprobs(logits, drawn), lengths),
    )


def empty_state(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    *,
    slots: int,
    logprobs: bool,
    over: Sharding | None = None,
) -> DecodeState:
    """A batch in which no row has begun: all are done, and their places free."""
    reading = open_prompts(target, drafter, params, slots=slots)
    return _without_answers(tokens, reading.cache, reading.draft, logprobs)


def _without_answers(tokens: Int[Array, "b t"], cache: Cache, draft: Any, logprobs: bool) -> DecodeState:
    """Rows that are done and have no answers."""
    batch = tokens.shape[0]
    no_token, no = jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool)
    return DecodeState(
        tokens=tokens,
        length=no_token,
        done=~no,
        stopped=no,
        cache=cache,
        draft=draft,
        steps=jnp.zeros((), jnp.int32),
        committed_at_step=jnp.zeros_like(tokens),
        logprobs=jnp.zeros(tokens.shape, jnp.float32) if logprobs else None,
    )


@spread
def advance(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    state: DecodeState,
    until: Int[Array, ""],
    enough: Int[Array, ""] | None = None,
    *,
    mode: Sampling,
    over: Sharding | None = None,
) -> DecodeState:
    """Runs steps on the device until every row is done, or `enough` of them are, or until step `until`."""

    def unfinished(state: DecodeState) -> Bool[Array, ""]:
        going_on = ~jnp.all(state.done) if enough is None else jnp.sum(state.done, dtype=jnp.int32) < enough
        return going_on & (state.steps < until)

    return jax.lax.while_loop(unfinished, lambda state: step(target, drafter, params, state, mode), state)


@functools.cache
def compiled_prefill() -> Any:
    """`prefill`, jitted once per process; weights are arguments, never constants of the program."""
    fixed = ("mode", "slots", "chunk", "logprobs", "over")
    return jax.jit(prefill, static_argnames=fixed, compiler_options=loop_options())


@functools.cache
def compiled_open_prompts() -> Any:
    """`open_prompts`, jitted once per process."""
    return jax.jit(spread(open_prompts), static_argnames=("slots", "over"), compiler_options=loop_options())


@functools.cache
def compiled_read_prompts() -> Any:
    """`read_prompts`, jitted once per process. What is being read is donated, as in `compiled_advance`."""
    fixed = ("chunk", "over")
    options = loop_options()
    return jax.jit(spread(read_prompts), static_argnames=fixed, donate_argnames=("reading",), compiler_options=options)


@functools.cache
def compiled_empty_state() -> Any:
    """`empty_state`, jitted once per process."""
    fixed = ("slots", "logprobs", "over")
    return jax.jit(spread(empty_state), static_argnames=fixed, compiler_options=loop_options())


@functools.cache
def compiled_advance() -> Any:
    """`advance`, jitted once per process. The state is donated: the caches are updated in place."""
    fixed = ("mode", "over")
    return jax.jit(advance, static_argnames=fixed, donate_argnames=("state",), compiler_options=loop_options())


def _noise(
    target: Target, params: BatchParams, length: Int[Array, "b"], count: int, mode: Sampling
) -> Float[Array, "b d v"] | None:
    """Noise of the `count` positions that follow position `length`."""
    if not mode.sampled:
        return None
    positions = length[:, None] + 1 + jnp.arange(count, dtype=jnp.int32)[None]
    with jax.named_scope("noise"):
        return sampling.noise(params.settings, positions, target.config.vocab_size)


def _until_stop(accepted: Accepted, params: BatchParams, state: DecodeState) -> tuple[Accepted, Bool[Array, "b"]]:
    """Cuts the path after the first stop token and at the limit; done rows accept nothing. Tells which rows stopped."""
    index = jnp.arange(accepted.tokens.shape[1], dtype=jnp.int32)[None]
    stops = _is_stop(accepted.tokens, params) & (index < accepted.count[:, None])
    first_stop = jnp.where(jnp.any(stops, axis=1), jax.lax.argmax(stops, 1, jnp.int32), accepted.count)
    room = params.limit - state.known
    count = jnp.where(state.done, 0, jnp.minimum(jnp.minimum(accepted.count, first_stop + 1), room))
    stopped = jnp.any(stops & (index < count[:, None]), axis=1)
    return Accepted(nodes=accepted.nodes, tokens=accepted.tokens, count=count), stopped


def _is_stop(tokens: Int[Array, "b r"], params: BatchParams) -> Bool[Array, "b r"]:
    return jnp.any(tokens[..., None] == params.stop_ids[None, None], axis=-1) & (tokens >= 0)


def _read_chunk(target, tokens, start, lengths, cache, taps):
    """One chunk of every prompt: rows past a prompt's end stand nowhere, and are not counted."""
    steps, chain = causal(*tokens.shape)
    positions = start[:, None] + steps
    with jax.named_scope("prefill"):
        output = target.forward(
            tokens, jnp.where(positions < lengths[:, None], positions, PADDING_POSITION), chain, cache, taps
        )
    return output, cache.write(output.kv, start, jnp.minimum(lengths, start + tokens.shape[1]))


def _last_rows(target: Target, drafter: Drafter, batch: int) -> tuple[Float[Array, "b 1 h"], ...]:
    """Place for the final hidden state and the taps of each prompt's last token."""
    row = jnp.zeros((batch, 1, target.config.hidden_size), target.activations)
    return (row,) * (1 + len(drafter.taps))


def _rows(values: Float[Array, "b n h"], nodes: Int[Array, "b r"]) -> Float[Array, "b r h"]:
    return jnp.take_along_axis(values, nodes[:, :, None], axis=1)


def _append(text: Any, rows: Any, at: Int[Array, "b"]) -> Any:
    """Writes `rows[b r]` into `text[b t]` at position `at` of each row; the caller leaves room for all r."""
    return jax.vmap(lambda line, new, start: jax.lax.dynamic_update_slice_in_dim(line, new, start, axis=0))(
        text, rows, at
    )


def _logprobs(logits: Float[Array, "b r v"], tokens: Int[Array, "b r"]) -> Float[Array, "b r"]:
    """log softmax(logits)[token]: temperature and filters left out, as OpenAI-style logprobs are."""
    chosen = jnp.take_along_axis(logits, jnp.maximum(tokens, 0)[:, :, None], axis=2)[:, :, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _append_logprobs(
    state: DecodeState, logits: Float[Array, "b n v"], accepted: Accepted
) -> Float[Array, "b t"] | None:
    if state.logprobs is None:
        return None
    path = jnp.take_along_axis(logits, accepted.nodes[:, :, None], axis=1)
    return _append(state.logprobs, _logprobs(path, accepted.tokens), state.known)
