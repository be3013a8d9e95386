"""Computes the log-probabilities of the tokens of prompts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.prefill import read_chunk
from eagle_jax.loop.state import TopTokens
from eagle_jax.models.cache import Cache
from eagle_jax.models.target import Target
from eagle_jax.sharding import Sharding, constrain, sharded, top_k
from eagle_jax.struct import pytree


@pytree
class PromptScores:
    """Prompts that are being scored (b rows, t text slots). Position 0 has no score.

    Attributes:
        num_chunks_read: chunks of the longest prompt that were read.
        cache: the target's K/V of the tokens that were read.
        logprobs: log softmax(logits)[token] of the token at each position.
        ranks: 1 plus the number of more probable tokens at that position.
        top: the likeliest tokens at each position; None when not asked for.
    """

    num_chunks_read: Int[Array, ""]
    cache: Cache
    logprobs: Float[Array, "b t"]
    ranks: Int[Array, "b t"]
    top: TopTokens | None


def open_scores(
    target: Target,
    lengths: Int[Array, "b"],
    tokens: Int[Array, "b t"],
    *,
    slots: int,
    top: int,
    sharding: Sharding | None = None,
) -> PromptScores:
    """Returns the state before scoring: room for `slots` tokens, fewer than `t`, and for the `top` likeliest."""
    empty = target.empty_cache(tokens.shape[0], slots)
    places = (*tokens.shape, top)
    return PromptScores(
        num_chunks_read=jnp.zeros((), jnp.int32),
        cache=dataclasses.replace(empty, rope_length=jnp.asarray(lengths)),
        logprobs=jnp.zeros(tokens.shape, jnp.float32),
        ranks=jnp.zeros(tokens.shape, jnp.int32),
        top=TopTokens(jnp.zeros(places, jnp.int32), jnp.zeros(places, jnp.float32)) if top else None,
    )


def score_chunks(
    target: Target,
    lengths: Int[Array, "b"],
    tokens: Int[Array, "b t"],
    scores: PromptScores,
    until: Int[Array, ""],
    *,
    chunk: int,
    sharding: Sharding | None = None,
) -> PromptScores:
    """Scores on to the end of the longest prompt, or until `until` chunks are read.

    Logits are computed chunk by chunk: for a whole prompt of 8,192 tokens they would take 4 GB with a vocabulary of
    128,256.
    """

    def unread(scores: PromptScores) -> Bool[Array, ""]:
        return (scores.num_chunks_read * chunk < jnp.max(lengths)) & (scores.num_chunks_read < until)

    def score(scores: PromptScores) -> PromptScores:
        begin = scores.num_chunks_read * chunk
        start = jnp.full(tokens.shape[0], begin, jnp.int32)
        rows = jax.lax.dynamic_slice_in_dim(tokens, begin, chunk + 1, axis=1)
        output, cache = read_chunk(target, rows[:, :chunk], start, lengths, scores.cache, ())
        with jax.named_scope("score"):
            return _recorded(scores, cache, target.logits(output.hidden), rows[:, 1:], begin)

    return jax.lax.while_loop(unread, score, scores)


def _recorded(
    scores: PromptScores,
    cache: Cache,
    logits: Float[Array, "b r v"],
    following: Int[Array, "b r"],
    begin: Int[Array, ""],
) -> PromptScores:
    """Adds the scores of the tokens that follow the rows of the chunk at `begin`."""

    def put(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), begin + 1, axis=1)

    token_logits = jnp.take_along_axis(logits, following[:, :, None], axis=2)
    total, top = jax.nn.logsumexp(logits, axis=-1, keepdims=True), scores.top
    if top is not None:
        values, ids = top_k(logits, top.ids.shape[2])
        # subtracted as of the token itself: where it is the likeliest, both are the same number
        top = TopTokens(put(top.ids, ids), put(top.logprobs, values - total))
    return PromptScores(
        num_chunks_read=scores.num_chunks_read + 1,
        cache=constrain(cache),
        logprobs=put(scores.logprobs, (token_logits - total)[:, :, 0]),
        ranks=put(scores.ranks, 1 + jnp.sum(logits > token_logits, axis=-1, dtype=jnp.int32)),
        top=top,
    )


compiled_open_scores = functools.partial(compiled, sharded(open_scores), static=("slots", "top", "sharding"))
compiled_score_chunks = functools.partial(
    compiled, sharded(score_chunks), static=("chunk", "sharding"), donated="scores"
)
