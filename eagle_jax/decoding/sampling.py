"""Drawing tokens: a token is a function of (logits, seed, position), and of nothing else.

At temperature T > 0 the token at position t is `argmax(warp(logits) + gumbel(seed, t))`, an exact sample from
softmax(warp(logits)) (the Gumbel-max trick); at T = 0 it is `argmax(logits)`. The noise depends on the request's seed
and the position alone, so the batch, the draft tree and the number of devices cannot change a token; and a drafter that
ranks its guesses with the same noise guesses the token that is about to be drawn.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, UInt32

from eagle_jax.decoding.gumbel import gumbel
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.threshold import within_top_weight
from eagle_jax.ops import argmax
from eagle_jax.struct import pytree

T = TypeVar("T")

# Nats by which a drafter marks down what its own filter removes. Its logits are not the target's, so it must not rule
# these tokens out: 2 was the best compromise of 0, 2, 4, 6, 10 on made-up targets and drafters 0.5 to 1.5 nats off.
FILTER_PENALTY = 2.0


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The sampling operations that a program contains: static, one program per value.

    Attributes:
        sampled: some row has temperature > 0; without it there is no noise in the program.
        filtered: some row uses top-k, top-p or min-p; without it there is no filter in the program.
        top_k, top_p: which searches the filter has.
        logprobs: values recorded for each token if the state has arrays for them: 0 none, 1 its log-probability, 2
            also the log-probabilities of the likeliest tokens.
        structured: some row has an automaton; None is found out while the program runs.
        mixed: the program serves rows that ask for less too, and conditionals skip what no row of a batch asks for; a
            GPU's host waits at each. Without it there are none, and all that the mode names is computed.
    """

    sampled: bool
    filtered: bool
    top_k: bool = True
    top_p: bool = True
    logprobs: int = 2
    structured: bool | None = None
    mixed: bool = True

    def where_asked(
        self, asked: Callable[[], Bool[Array, ""]], compute: Callable[[], T], otherwise: Callable[[], T]
    ) -> T:
        """Returns `compute()`, or `otherwise()` if no row of a program for mixed rows asks for it."""
        return jax.lax.cond(asked(), compute, otherwise) if self.mixed else compute()


GREEDY = Sampling(sampled=False, filtered=False)


@pytree
class Settings:
    """Sampling parameters, one value per batch row; numpy arrays until a program takes them.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the most probable tokens that together hold this much probability; 1 keeps all.
        min_p: keep tokens at least this probable, relative to the most probable one; 0 keeps all.
        key: words of the request's random key (see `request_keys`).
    """

    temperature: Float[Array | np.ndarray, "b"]
    top_k: Int[Array | np.ndarray, "b"]
    top_p: Float[Array | np.ndarray, "b"]
    min_p: Float[Array | np.ndarray, "b"]
    key: UInt32[Array | np.ndarray, "b 2"]

    @property
    def greedy(self) -> Bool[Array | np.ndarray, "b"]:
        """Rows that take the most probable token."""
        return self.temperature <= 0


def request_keys(seeds: Sequence[int], samples: Sequence[int]) -> UInt32[np.ndarray, "b 2"]:
    """Returns the words of requests' random keys: of answer `samples[i]` (from 0) to a request with seed `seeds[i]`.

    Answer 0 has the key of the seed, so the first of several answers is the single answer. Further answers fold a
    number counted down from 2**32 into it: positions are folded in from 0 upwards, and no answer's key may be the noise
    of another's position. Seeds are whole numbers in [0, 2**63); all bits count, whether or not JAX's 64-bit types are
    enabled.
    """
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed}, expected a whole number from 0 to 2**63 - 1; choose one in that range")
    words = np.array([(seed >> 32, seed & 0xFFFFFFFF) for seed in seeds], np.uint32).reshape(-1, 2)
    counted_down = np.array([-sample % 2**32 for sample in samples], np.uint32)
    if not counted_down.any():  # nearly always; the rest takes a millisecond
        return words
    others = jax.vmap(jax.random.fold_in)(_keys(words), jnp.asarray(counted_down))
    return np.where(counted_down[:, None] == 0, words, jax.random.key_data(others))


def _keys(words: UInt32[Array | np.ndarray, "b 2"]) -> Key[Array, "b"]:
    """Returns the keys that consist of these words."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def noise(settings: Settings, positions: Int[Array, "b n"], vocab_size: int) -> Float[Array, "b n v"]:
    """Returns Gumbel noise over the vocabulary for the token at each absolute position.

    A pure function of (the row's key, position). All nodes of one depth share a position: ask once per depth and gather
    with `at_depth`, which is a sixth of the work for the default tree.
    """

    def at_position(key: Key[Array, ""], position: Int[Array, ""]) -> Float[Array, " v"]:
        return gumbel(jax.random.key_data(jax.random.fold_in(key, position)), vocab_size)

    return jax.vmap(jax.vmap(at_position, in_axes=(None, 0)))(_keys(settings.key), positions)


def at_depth(noise_by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Float[Array, "b n v"]:
    """Returns the noise of every node of a tree: row `depth[j]` of the noise drawn once per depth."""
    return jnp.take_along_axis(noise_by_depth, depth[:, :, None], axis=1)


def warp(logits: Float[Array, "b n v"], settings: Settings, mode: Sampling) -> Float[Array, "b n v"]:
    """Applies temperature, then top-k, top-p and min-p in HuggingFace's order; filtered logits are -inf.

    Filters are thresholds: a token stays unless enough tokens are *strictly* more probable (k of them, or probability
    p), so equal tokens stay or go together. The most probable token is at 0 and always stays. Greedy rows are as if at
    temperature 1.
    """
    scaled = _scale(logits, settings)
    return jnp.where(_survivors(scaled, settings, mode), scaled, -jnp.inf) if mode.filtered else scaled


def draw(
    logits: Float[Array, "b n v"], noise: Float[Array, "b n v"] | None, settings: Settings, mode: Sampling
) -> Int[Array, "b n"]:
    """Returns the token after each node: argmax(warp(logits) + noise), in greedy rows argmax(logits) (ties: lower id).

    `noise` may be None if `mode.sampled` is False.
    """
    if mode.sampled:
        assert noise is not None, "sampled rows need noise"
        drawn_from = warp(logits, settings, mode) + noise
        logits = jnp.where(settings.greedy[:, None, None], logits, drawn_from)
    return argmax(logits)


def scores(
    logits: Float[Array, "b n v"],
    noise: Float[Array, "b #n v"] | None,
    settings: Settings,
    mode: Sampling,
) -> Scores:
    """Returns a drafter's scores of guesses: log_softmax(logits + T noise), log_softmax(logits / T + noise) if T > 1.

    With the noise of the position that the guess would take, the best guess is the token that the target draws if the
    drafter's logits are right, filters included. How far they are off does not depend on T: divided by a small one, a
    cold drafter would take its errors for certainties. `noise` may be None if `mode.sampled` is False.
    """
    if mode.sampled:
        assert noise is not None, "sampled rows need noise"
        temperature = settings.temperature[:, None, None]
        cold, hot = jnp.clip(temperature, 0, 1), jnp.maximum(temperature, 1)
        survives = _survivors(_scale(logits, settings), settings, mode) if mode.filtered else True
        logits = logits / hot + cold * (noise - jnp.where(survives, 0.0, FILTER_PENALTY))
    return Scores(logits)


def _scale(logits: Float[Array, "b n v"], settings: Settings) -> Float[Array, "b n v"]:
    """logits / T, shifted so that the largest is 0: the smallest temperature gives -inf at worst, never nan."""
    tiny = jnp.finfo(jnp.float32).tiny
    temperature = jnp.where(settings.greedy, 1.0, jnp.maximum(settings.temperature, tiny))
    return (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature[:, None, None]


def _survivors(scaled: Float[Array, "b n v"], settings: Settings, mode: Sampling) -> Bool[Array, "b n v"]:
    """Returns which tokens survive top-k, then top-p among those, then min-p."""

    def everything() -> Bool[Array, "b n v"]:
        return jnp.ones_like(scaled, bool)

    survives = everything()
    if mode.top_k:
        survives = mode.where_asked(
            lambda: jnp.any(settings.top_k > 0), lambda: _in_top_k(scaled, settings), everything
        )
    if mode.top_p:
        left = jnp.where(survives, jnp.exp(scaled), 0.0)  # probability up to the normaliser, which cancels
        survives &= mode.where_asked(
            lambda: jnp.any(settings.top_p < 1), lambda: _in_top_p(scaled, left, settings), everything
        )
    return survives & (scaled >= jnp.log(settings.min_p)[:, None, None])


def _in_top_k(scaled: Float[Array, "b n v"], settings: Settings) -> Bool[Array, "b n v"]:
    k = jnp.where(settings.top_k > 0, settings.top_k, scaled.shape[-1]).astype(jnp.float32)
    return within_top_weight(scaled, jnp.ones_like(scaled), k[:, None])


def _in_top_p(
    scaled: Float[Array, "b n v"], probability: Float[Array, "b n v"], settings: Settings
) -> Bool[Array, "b n v"]:
    tiny = jnp.finfo(jnp.float32).tiny
    p = jnp.where(settings.top_p < 1, jnp.maximum(settings.top_p, tiny), 2.0)  # 1 is off, however the sum is rounded
    return within_top_weight(scaled, probability, p[:, None] * jnp.sum(probability, axis=-1))
