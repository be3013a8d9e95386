"""Adjustments of logits by the text so far: bias, penalties and bans, at every node of a tree.

An adjusted logit is a function of the request and of the text before the token, so plain decoding and every tree
compute the same: a node counts the tokens on its path as text.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.automata import Automata
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import depth_below
from eagle_jax.struct import pytree

# Added to a logit last, which makes its probability 0. Finite, so that a row with all tokens banned has no nan.
BANNED = -1e30
NOT_ALLOWED = 2 * BANNED  # lower, so that if all allowed tokens are banned, an allowed token is drawn


@pytree
class LogitsParams:
    """Options of requests that adjust logits, one value per row (b rows, w words of at most l tokens).

    Attributes:
        bias: added to the logits, before the penalties.
        static_bans: `BANNED` or `NOT_ALLOWED` for tokens that are banned at every position, else 0.
        repetition: divides positive logits of tokens that are in prompt or answer, and multiplies negative ones (Keskar
            et al. 2019, section 4.1, as in transformers); 1 is off.
        frequency: subtracted once for each occurrence of a token in the answer.
        presence: subtracted from tokens that occur in the answer.
        min_tokens: tokens of the answer before a stop token is allowed.
        bad_words: banned token sequences, each padded with -1 on the left.
        automata: automata of structured output; their bans override everything else. None if no row has one.
    """

    bias: Float[Array | np.ndarray, "b v"]
    static_bans: Float[Array | np.ndarray, "b v"]
    repetition: Float[Array | np.ndarray, "b"]
    frequency: Float[Array | np.ndarray, "b"]
    presence: Float[Array | np.ndarray, "b"]
    min_tokens: Int[Array | np.ndarray, "b"]
    bad_words: Int[Array | np.ndarray, "b w l"]
    automata: Automata | None

    def for_mode(self, mode: Sampling) -> "LogitsParams":
        """Specializes the parameters for a program of this mode: without automata if no row has one."""
        if mode.structured is None or self.automata is None:
            return self
        automata = dataclasses.replace(self.automata, in_use=True) if mode.structured else None
        return dataclasses.replace(self, automata=automata)


@pytree
class Prefix:
    """The text up to and including each node of a tree (b rows, t positions, n nodes).

    Attributes:
        tokens: prompt and answer by absolute position.
        count: number of these tokens; the last one is the tree's root.
        prompt_length: number of tokens of the prompt.
        nodes: tokens of the tree's nodes.
        ancestors: `Tree.ancestors`.
        states: state of the row's automaton after each node; None without automata.
    """

    tokens: Int[Array, "b t"]
    count: Int[Array, "b"]
    prompt_length: Int[Array, "b"]
    nodes: Int[Array, "b n"]
    ancestors: Bool[Array, "b n n"]
    states: Int[Array, "b n"] | None = None

    @property
    def path(self) -> Bool[Array, "b n n"]:
        """`path[j, i]`: drafted node i is node j or an ancestor of it; the root is excluded."""
        return self.ancestors & (jnp.arange(self.nodes.shape[1], dtype=jnp.int32) > 0)[None, None]

    @staticmethod
    def of_text(
        tokens: Int[Array, "b t"], count: Int[Array, "b"], prompt_length: Int[Array, "b"], state: Int[Array, "b"]
    ) -> "Prefix":
        """Returns the prefix of a tree with its root alone."""
        root = jnp.zeros((tokens.shape[0], 1), jnp.int32)
        return Prefix(tokens, count, prompt_length, root, jnp.ones((*root.shape, 1), bool), state[:, None])


@pytree
class LogitsAdjustment:
    """An adjustment of the logits at n nodes.

    Attributes:
        bias: added first.
        repetition: then divides positive logits and multiplies negative ones.
        penalty: subtracted last; includes bans.
    """

    bias: Float[Array, "b n v"]
    repetition: Float[Array, "b n v"]
    penalty: Float[Array, "b n v"]

    def map(self, part: Callable[[Array], Array]) -> "LogitsAdjustment":
        """Returns the adjustment for a part of the vocabulary."""
        return LogitsAdjustment(*map(part, (self.bias, self.repetition, self.penalty)))

    def apply(self, logits: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        """Returns the adjusted logits."""
        logits = logits + self.bias
        return jnp.where(logits > 0, logits / self.repetition, logits * self.repetition) - self.penalty


def adjustment_at(processor: LogitsParams, prefix: Prefix, stop_ids: Int[Array, "b e"]) -> LogitsAdjustment:
    """Returns the adjustment of the logits at each node, without the bans of automata."""
    vocab_size = processor.bias.shape[1]
    position = jnp.arange(prefix.tokens.shape[1], dtype=jnp.int32)[None]
    in_text = position < prefix.count[:, None]
    in_answer = in_text & (position >= prefix.prompt_length[:, None])
    text_counts, answer_counts = (_count(prefix.tokens, counted, vocab_size) for counted in (in_text, in_answer))
    path_counts = _count_at_nodes(prefix.nodes, prefix.path, vocab_size)
    text_counts, answer_counts = text_counts[:, None] + path_counts, answer_counts[:, None] + path_counts

    per_row = (slice(None), None, None)
    frequency, presence = jnp.asarray(processor.frequency)[per_row], jnp.asarray(processor.presence)[per_row]
    penalty = frequency * answer_counts + presence * (answer_counts > 0).astype(jnp.float32)
    bans = jnp.asarray(processor.static_bans)[:, None] + BANNED * _banned(processor, prefix, stop_ids, vocab_size)
    return LogitsAdjustment(
        bias=jnp.broadcast_to(jnp.asarray(processor.bias)[:, None], penalty.shape),
        repetition=jnp.where(text_counts > 0, jnp.asarray(processor.repetition)[per_row], 1.0),
        penalty=penalty - bans,
    )


def _count(tokens: Int[Array, "b r"], counted: Bool[Array, "b r"], vocab_size: int) -> Float[Array, "b v"]:
    """Counts how often each token occurs where `counted` is true."""
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    zeros = jnp.zeros((tokens.shape[0], vocab_size), jnp.float32)
    return zeros.at[rows, jnp.maximum(tokens, 0)].add(counted.astype(jnp.float32))


def _count_at_nodes(tokens: Int[Array, "b r"], counted: Bool[Array, "b n r"], vocab_size: int) -> Float[Array, "b n v"]:
    """Counts how often each token occurs where `counted` is true, for each node."""
    rows, nodes = (jnp.arange(size, dtype=jnp.int32) for size in counted.shape[:2])
    at = rows[:, None, None], nodes[None, :, None], jnp.maximum(tokens, 0)[:, None]
    return jnp.zeros((*counted.shape[:2], vocab_size), jnp.float32).at[at].add(counted.astype(jnp.float32))


def _banned(
    processor: LogitsParams, prefix: Prefix, stop_ids: Int[Array, "b e"], vocab_size: int
) -> Float[Array, "b n v"]:
    """Returns 1 where a token would end an answer too early, or complete a bad word."""
    answer_length = prefix.count[:, None] + depth_below(prefix.ancestors) - prefix.prompt_length[:, None]
    too_early = answer_length < jnp.asarray(processor.min_tokens)[:, None]
    is_stop = _count(stop_ids, stop_ids >= 0, vocab_size) > 0
    completes = _completes_bad_word(jnp.asarray(processor.bad_words), prefix, vocab_size)
    return (completes | too_early[:, :, None] & is_stop[:, None]).astype(jnp.float32)


def _completes_bad_word(words: Int[Array, "b w l"], prefix: Prefix, vocab_size: int) -> Bool[Array, "b n v"]:
    """Returns which tokens would complete a bad word at each node."""
    distance = jnp.arange(words.shape[2] - 1, 0, -1, dtype=jnp.int32)  # to a word's last token, from its other tokens
    before = _token_before(prefix, distance)[:, :, None]
    matches = jnp.all((words[:, None, :, :-1] == before) | (words[:, None, :, :-1] < 0), axis=-1)
    matches &= words[:, None, :, -1] >= 0
    return _count_at_nodes(words[:, :, -1], matches, vocab_size) > 0


def _token_before(prefix: Prefix, distance: Int[Array, " k"]) -> Int[Array, "b n k"]:
    """Returns the tokens at these distances before the token after each node; -1 before the text begins."""
    depth = depth_below(prefix.ancestors)
    node_depth = depth[:, :, None] - distance[None, None] + 1  # 0 is the root, negative depths are text before it
    is_ancestor = prefix.path[:, :, None] & (depth[:, None, None] == node_depth[..., None])
    drafted = jnp.sum(jnp.where(is_ancestor, prefix.nodes[:, None, None], 0), axis=-1, dtype=jnp.int32)
    position = prefix.count[:, None, None] + node_depth - 1
    text = jax.vmap(lambda row, at: row[jnp.maximum(at, 0)])(prefix.tokens, position)
    return jnp.where(node_depth > 0, drafted, jnp.where(position >= 0, text, -1))
