"""The state of a running batch of requests."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.automata import Automata
from eagle_jax.decoding.processor import LogitsParams
from eagle_jax.decoding.sampling import Sampling, Settings
from eagle_jax.models.cache import Cache
from eagle_jax.struct import pytree


@pytree
class BatchParams:
    """Parameters of the requests in a batch, one value per row; on the host until a program takes them, then constant.

    Attributes:
        settings: how tokens are drawn.
        prompt_length: tokens of the prompt.
        limit: tokens of prompt and answer together at which the answer ends for length.
        stop_ids: token ids that end an answer, padded with -1.
        processor: logits options of the requests; None if no request has any.
        top_logprobs: whether the likeliest tokens are recorded in the place of each token; None if no row can ask.
    """

    settings: Settings
    prompt_length: Int[Array | np.ndarray, "b"]
    limit: Int[Array | np.ndarray, "b"]
    stop_ids: Int[Array | np.ndarray, "b e"]
    processor: LogitsParams | None = None
    top_logprobs: Bool[Array | np.ndarray, "b"] | None = None

    @property
    def automata(self) -> Automata | None:
        """Automata of structured output; None if no row can have one."""
        return None if self.processor is None else self.processor.automata

    def for_mode(self, mode: Sampling) -> "BatchParams":
        """Returns the same for a program of this mode."""
        return self if self.processor is None else dataclasses.replace(self, processor=self.processor.for_mode(mode))


@pytree
class PrefillState:
    """The state of a prefill under way (b rows, h hidden size).

    Attributes:
        num_chunks_read: chunks of the longest prompt that were read; shorter prompts end earlier.
        cache: the target's K/V of the tokens that were read.
        draft: the drafter's own state.
        last: final hidden state and taps of each prompt's last token, after it was read.
    """

    num_chunks_read: Int[Array, ""]
    cache: Cache
    draft: Any
    last: tuple[Float[Array, "b 1 h"], ...]


MAX_TOP_LOGPROBS = 20  # as in OpenAI's API


@pytree
class TopTokens:
    """The likeliest tokens in the place of each token, best first (k of them), by the target's unwarped softmax.

    Attributes:
        ids: their token ids.
        logprobs: their log-probabilities.
    """

    ids: Int[Array, "b t k"]
    logprobs: Float[Array, "b t k"]


@pytree
class DecodeState:
    """The carry of the loop (b rows, t text slots).

    Between steps the tokens at positions `0 .. length` are known and those before `length` are committed: they are in
    the caches. The one at `length` is the root, drawn but not read by the target yet.

    Attributes:
        tokens: prompt and answer by absolute position.
        length: committed tokens.
        done: row has its answer.
        stopped: row ended at a stop token (else, once done, for length).
        cache: the target's K/V.
        draft: the drafter's own state.
        automaton: state of the automaton of each row that has one, after the root.
        steps: since prefill.
        committed_at_step: the step that committed each token of the answer, counted from 1; 0 for the first one, which
            prefill draws.
        logprobs: log-probability of each token under the target's unwarped softmax; None when not asked for.
        top: the likeliest tokens at each position, of rows that ask for them; None when none can.
    """

    # Tokens
    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    done: Bool[Array, "b"]
    stopped: Bool[Array, "b"]

    # State of the models
    cache: Cache
    draft: Any
    automaton: Int[Array, "b"]

    # Reported
    steps: Int[Array, ""]
    committed_at_step: Int[Array, "b t"]
    logprobs: Float[Array, "b t"] | None
    top: TopTokens | None

    @property
    def num_tokens(self) -> Int[Array, "b"]:
        """Tokens of prompt and answer so far, the root included."""
        return self.length + 1
