"""Logits that depend on what was written before: bias, penalties and bans, at every node of a tree.

What a token's logit becomes is a function of the request and of the text before the token, so plain decoding and every
tree compute the same: a node counts the tokens of its own path as if they were text.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.tree import depth_below
from eagle_jax.struct import pytree

BANNED = -1e30  # added to a logit: no probability is left of it, and no nan comes of it where all are banned


@pytree
class LogitsProcessor:
    """What requests ask of their logits, one value per row (b rows, w words of at most l tokens).

    Attributes:
        bias: added to the logits, before the penalties; `BANNED` where a token must not come.
        repetition: divides positive logits of tokens that are in prompt or answer, and multiplies negative ones (Keskar
            et al. 2019, section 4.1, as transformers has it); 1 is off.
        frequency: subtracted for each time that a token is in the answer.
        presence: subtracted from tokens that are in the answer.
        min_tokens: tokens of the answer before which no stop token may come.
        bad_words: token sequences that must not come, each padded with -1 on the left.
    """

    bias: Float[Array | np.ndarray, "b v"]
    repetition: Float[Array | np.ndarray, "b"]
    frequency: Float[Array | np.ndarray, "b"]
    presence: Float[Array | np.ndarray, "b"]
    min_tokens: Int[Array | np.ndarray, "b"]
    bad_words: Int[Array | np.ndarray, "b w l"]


@pytree
class Prefix:
    """The text before each place of a tree (b rows, t text slots, n nodes).

    Attributes:
        tokens: prompt and answer by absolute position.
        known: how many of them there are; the last one is the tree's root.
        prompt_length: how many are the prompt.
        guesses: tokens of the tree's nodes.
        ancestors: of each node, as `Tree.ancestors` has them.
    """

    tokens: Int[Array, "b t"]
    known: Int[Array, "b"]
    prompt_length: Int[Array, "b"]
    guesses: Int[Array, "b n"]
    ancestors: Bool[Array, "b n n"]

    @property
    def path(self) -> Bool[Array, "b n n"]:
        """`path[j, i]`: guess i is on the way to node j, or it; the root is no guess."""
        return self.ancestors & (jnp.arange(self.guesses.shape[1], dtype=jnp.int32) > 0)[None, None]

    @staticmethod
    def of_text(tokens: Int[Array, "b t"], known: Int[Array, "b"], prompt_length: Int[Array, "b"]) -> "Prefix":
        """One place in each row, behind the known tokens."""
        root = jnp.zeros((tokens.shape[0], 1), jnp.int32)
        return Prefix(tokens, known, prompt_length, root, jnp.ones((*root.shape, 1), bool))


@pytree
class Change:
    """What becomes of logits at n places; `apply` is the whole of it."""

    bias: Float[Array, "b n v"]
    repetition: Float[Array, "b n v"]
    penalty: Float[Array, "b n v"]

    def map(self, part: Callable[[Array], Array]) -> "Change":
        """The change of a part of the vocabulary."""
        return Change(*map(part, (self.bias, self.repetition, self.penalty)))

    def apply(self, logits: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        """Bias, then the repetition penalty, then the other two."""
        logits = logits + self.bias
        return jnp.where(logits > 0, logits / self.repetition, logits * self.repetition) - self.penalty


def change_at(processor: LogitsProcessor, prefix: Prefix, stop_ids: Int[Array, "b e"]) -> Change:
    """The change of the logits of what follows each node."""
    vocab_size = processor.bias.shape[1]
    position = jnp.arange(prefix.tokens.shape[1], dtype=jnp.int32)[None]
    is_known = position < prefix.known[:, None]
    in_answer = is_known & (position >= prefix.prompt_length[:, None])
    seen, written = (_count(prefix.tokens, counted, vocab_size) for counted in (is_known, in_answer))
    guessed = jax.nn.one_hot(prefix.guesses, vocab_size, dtype=jnp.float32)
    on_path = jnp.einsum("bnm,bmv->bnv", prefix.path.astype(jnp.float32), guessed, precision="highest")
    seen, written = seen[:, None] + on_path, written[:, None] + on_path

    per_row = (slice(None), None, None)
    frequency, presence = jnp.asarray(processor.frequency)[per_row], jnp.asarray(processor.presence)[per_row]
    return Change(
        bias=jnp.asarray(processor.bias)[:, None] + BANNED * _banned(processor, prefix, stop_ids, vocab_size),
        repetition=jnp.where(seen > 0, jnp.asarray(processor.repetition)[per_row], 1.0),
        penalty=frequency * written + presence * (written > 0).astype(jnp.float32),
    )


def _count(tokens: Int[Array, "b r"], counted: Bool[Array, "b r"], vocab_size: int) -> Float[Array, "b v"]:
    """How often each token is among those that are counted."""
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    zeros = jnp.zeros((tokens.shape[0], vocab_size), jnp.float32)
    return zeros.at[rows, jnp.maximum(tokens, 0)].add(counted.astype(jnp.float32))


def _banned(
    processor: LogitsProcessor, prefix: Prefix, stop_ids: Int[Array, "b e"], vocab_size: int
) -> Float[Array, "b n v"]:
    """1 where a token would end an answer too early, or complete a bad word."""
    written = prefix.known[:, None] + depth_below(prefix.ancestors) - prefix.prompt_length[:, None]
    too_early = written < jnp.asarray(processor.min_tokens)[:, None]
    ends = _count(stop_ids, stop_ids >= 0, vocab_size) > 0
    completed = _completed(jnp.asarray(processor.bad_words), prefix, vocab_size)
    return (completed | too_early[:, :, None] & ends[:, None]).astype(jnp.float32)


def _completed(words: Int[Array, "b w l"], prefix: Prefix, vocab_size: int) -> Bool[Array, "b n v"]:
    """Which tokens would complete a word at each place."""
    back = jnp.arange(words.shape[2] - 1, 0, -1, dtype=jnp.int32)  # of a word's tokens but its last, from the place
    before = _token_before(prefix, back)[:, :, None]
    begun = jnp.all((words[:, None, :, :-1] == before) | (words[:, None, :, :-1] < 0), axis=-1)
    begun &= words[:, None, :, -1] >= 0
    last = jax.nn.one_hot(words[:, :, -1], vocab_size, dtype=jnp.float32)
    return jnp.einsum("bnw,bwv->bnv", begun.astype(jnp.float32), last, precision="highest") > 0


def _token_before(prefix: Prefix, back: Int[Array, " k"]) -> Int[Array, "b n k"]:
    """The tokens so many places back from what follows each node; -1 before the text."""
    depth = depth_below(prefix.ancestors)
    wanted = depth[:, :, None] - back[None, None] + 1  # depth of the guess there; from 0 downwards it is a known token
    is_there = prefix.path[:, :, None] & (depth[:, None, None] == wanted[..., None])
    guess = jnp.sum(jnp.where(is_there, prefix.guesses[:, None, None], 0), axis=-1, dtype=jnp.int32)
    position = prefix.known[:, None, None] + wanted - 1
    known = jax.vmap(lambda line, at: line[jnp.maximum(at, 0)])(prefix.tokens, position)
    return jnp.where(wanted > 0, guess, jnp.where(position >= 0, known, -1))
