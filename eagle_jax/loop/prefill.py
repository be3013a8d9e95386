"""Prefill: reads prompts into the caches, chunk by chunk, and draws the first token of each row."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding import sampling
from eagle_jax.decoding.processor import Prefix
from eagle_jax.decoding.rows import append, take_rows
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.verify import Accepted
from eagle_jax.drafters.base import CommittedRows, Drafter
from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.decode import (
    adjust_logits,
    automaton_after,
    is_finite,
    is_stop,
    noise_after,
)
from eagle_jax.loop.flat_nodes import PaddedNodes
from eagle_jax.loop.logprobs import record_logprobs
from eagle_jax.loop.state import MAX_TOP_LOGPROBS, BatchParams, DecodeState, PrefillState, TopTokens
from eagle_jax.models.cache import Cache, is_full_length_cache
from eagle_jax.models.lm import causal
from eagle_jax.models.target import PADDING_POSITION, Target
from eagle_jax.sharding import Sharding, constrain, sharded


@sharded
def prefill(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    *,
    mode: Sampling,
    slots: int,
    chunk: int,
    logprobs: int,
    sharding: Sharding | None = None,
) -> DecodeState:
    """Reads the prompts (right-padded in `tokens`), chunk by chunk, and draws each row's first token.

    A chunk is a tree without branches whose nodes are all accepted. One program serves all prompt
    lengths: the chunks are a device loop up to the longest prompt. Equivalent to `init_prefill`, `read_prompts` and
    `first_tokens` in turn; a server calls these separately.

    Args:
        tokens: `t` must be greater than `slots`.
        slots: at least the longest prompt, rounded up to whole chunks.
        logprobs: what to record for each token: 0 nothing, 1 its log-probability, 2 also the likeliest tokens and
            theirs.
        sharding: where everything lies when there are several devices; used by the decorator `sharded`.
    """
    progress = init_prefill(target, drafter, params, slots=slots)
    progress = read_prompts(target, drafter, params, tokens, progress, chunk=chunk)
    return first_tokens(target, drafter, params, tokens, progress, mode=mode, logprobs=logprobs)


def init_prefill(
    target: Target, drafter: Drafter, params: BatchParams, *, slots: int, sharding: Sharding | None = None
) -> PrefillState:
    """Returns the state before the first chunk, with caches for `slots` tokens."""
    batch = len(params.limit)
    cache = target.empty_cache(batch, slots)
    cache = dataclasses.replace(cache, rope_length=jnp.asarray(params.prompt_length))
    cache, draft = constrain((cache, drafter.init(target, batch, slots)))
    return PrefillState(
        num_chunks_read=jnp.zeros((), jnp.int32), cache=cache, draft=draft, last=_last_rows(target, drafter, batch)
    )


def restart_prefill(
    target: Target, drafter: Drafter, params: BatchParams, progress: PrefillState, *, sharding: Sharding | None = None
) -> PrefillState:
    """Returns what `init_prefill` does, in the K/V arrays of an earlier state, whose contents are never read."""
    fresh = init_prefill(target, drafter, params, slots=progress.cache.slots)

    def keep(old: Any, new: Any) -> Any:
        if not is_full_length_cache(old, progress.cache.slots):
            return new
        pairs = zip(old.layers, new.layers, strict=True)
        return dataclasses.replace(new, layers=tuple(old if old.by_position else new for old, new in pairs))

    return jax.tree.map(keep, progress, fresh, is_leaf=lambda node: isinstance(node, Cache))


def read_prompts(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    progress: PrefillState,
    until: Int[Array, ""] | None = None,
    *,
    chunk: int,
    sharding: Sharding | None = None,
) -> PrefillState:
    """Reads chunks up to the end of the longest prompt, or until `until` chunks are read."""
    lengths, batch = jnp.asarray(params.prompt_length), tokens.shape[0]

    def unread(progress: PrefillState) -> Bool[Array, ""]:
        left = progress.num_chunks_read * chunk < jnp.max(lengths)
        return left if until is None else left & (progress.num_chunks_read < until)

    def read(progress: PrefillState) -> PrefillState:
        index, cache, draft = progress.num_chunks_read, progress.cache, progress.draft
        start = jnp.full(batch, index * chunk, jnp.int32)
        chunk_tokens = jax.lax.dynamic_slice_in_dim(tokens, index * chunk, chunk + 1, axis=1)
        output, cache = read_chunk(target, chunk_tokens[:, :chunk], start, lengths, cache, drafter.taps)
        # not the last token of a prompt: the token after it is not drawn yet, `first_tokens` observes it
        observed = CommittedRows(
            start=start,
            count=jnp.clip(lengths - 1 - start, 0, chunk),
            tokens=chunk_tokens[:, :chunk],
            following=chunk_tokens[:, 1:],
            hidden=output.hidden,
            taps=output.taps,
            is_prefill_chunk=True,
        )
        draft = drafter.observe(target, draft, observed)
        rows = (output.hidden, *output.taps)
        at = jnp.clip(lengths - 1 - start, 0, chunk - 1)[:, None]
        ends = ((lengths - 1) // chunk == index)[:, None, None]
        last = tuple(jnp.where(ends, take_rows(row, at), old) for row, old in zip(rows, progress.last, strict=True))
        return PrefillState(num_chunks_read=index + 1, cache=cache, draft=draft, last=last)

    return jax.lax.while_loop(unread, read, progress)


def first_tokens(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    progress: PrefillState,
    *,
    mode: Sampling,
    logprobs: int,
) -> DecodeState:
    """Draws each row's first token, once its prompt is read."""
    params = params.for_mode(mode)
    lengths, last = jnp.asarray(params.prompt_length), progress.last
    logits = target.logits(last[0])
    noise = noise_after(target, params, lengths - 1, 1, mode)
    automaton_start = jnp.zeros_like(lengths)
    text = Prefix.of_text(tokens, lengths, lengths, automaton_start)
    drawn = sampling.draw(adjust_logits(logits, params, text, PaddedNodes()), noise, params.settings, mode)
    failed = ~is_finite(last[0])[:, 0]
    observed = CommittedRows(
        start=lengths - 1,
        count=jnp.ones_like(lengths),
        tokens=jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1),
        following=drawn,
        hidden=last[0],
        taps=tuple(last[1:]),
    )
    stopped = is_stop(drawn, params)[:, 0]
    draft = drafter.observe(target, progress.draft, observed)
    state = _without_answers(tokens, progress.cache, draft, logprobs, target.config.vocab_size)
    accepted = Accepted(nodes=jnp.zeros_like(drawn), draws=drawn, count=jnp.ones_like(lengths))
    logprobs_so_far, top = record_logprobs(state, logits, drawn, lengths, params.top_logprobs, lengths > 0, mode)
    return dataclasses.replace(
        state,
        tokens=append(tokens, drawn, lengths),
        length=lengths,
        done=stopped | failed | (lengths + 1 >= params.limit),
        stopped=stopped & ~failed,
        automaton=automaton_after(params, automaton_start, text, accepted),
        logprobs=logprobs_so_far,
        top=top,
    )


def empty_state(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    *,
    slots: int,
    logprobs: int,
    sharding: Sharding | None = None,
) -> DecodeState:
    """Returns the state of an empty batch: every row counts as done, so it is free."""
    progress = init_prefill(target, drafter, params, slots=slots)
    return _without_answers(tokens, progress.cache, progress.draft, logprobs, target.config.vocab_size)


def _without_answers(
    tokens: Int[Array, "b t"], cache: Cache, draft: Any, logprobs: int, vocab_size: int
) -> DecodeState:
    """Returns rows that are done and have no answers."""
    top_shape = (*tokens.shape, min(MAX_TOP_LOGPROBS, vocab_size))
    batch = tokens.shape[0]
    zeros, false = jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool)
    return DecodeState(
        tokens=tokens,
        length=zeros,
        done=~false,
        stopped=false,
        cache=cache,
        draft=draft,
        automaton=zeros,
        steps=jnp.zeros((), jnp.int32),
        committed_at_step=jnp.zeros_like(tokens),
        logprobs=jnp.zeros(tokens.shape, jnp.float32) if logprobs else None,
        top=TopTokens(jnp.zeros(top_shape, jnp.int32), jnp.zeros(top_shape, jnp.float32)) if logprobs > 1 else None,
    )


compiled_prefill = functools.partial(compiled, prefill, static=("mode", "slots", "chunk", "logprobs", "sharding"))
compiled_init_prefill = functools.partial(compiled, sharded(init_prefill), static=("slots", "sharding"))
compiled_restart_prefill = functools.partial(compiled, sharded(restart_prefill), static="sharding", donated="progress")
compiled_read_prompts = functools.partial(
    compiled, sharded(read_prompts), static=("chunk", "sharding"), donated="progress"
)
compiled_empty_state = functools.partial(compiled, sharded(empty_state), static=("slots", "logprobs", "sharding"))


def read_chunk(
    target: Target,
    tokens: Int[Array, "b c"],
    start: Int[Array, "b"],
    lengths: Int[Array, "b"],
    cache: Cache,
    taps: tuple[int, ...],
) -> tuple[Any, Cache]:
    """Reads one chunk of every prompt; rows past a prompt's end are padding and are not counted."""
    steps, chain = causal(*tokens.shape)
    positions = start[:, None] + steps
    with jax.named_scope("prefill"):
        output = target.forward(
            tokens, jnp.where(positions < lengths[:, None], positions, PADDING_POSITION), chain, cache, taps
        )
    return output, cache.write(output.kv, start, jnp.minimum(lengths, start + tokens.shape[1]))


def _last_rows(target: Target, drafter: Drafter, batch: int) -> tuple[Float[Array, "b 1 h"], ...]:
    """Returns zeros for the final hidden state and the taps of each prompt's last token."""
    row = jnp.zeros((batch, 1, target.config.hidden_size), target.activations)
    return (row,) * (1 + len(drafter.taps))
