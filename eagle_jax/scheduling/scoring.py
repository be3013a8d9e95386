"""Log-probabilities of prompts: `prompt_logprobs`, and prompts scored chunk by chunk."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eagle_jax.chat.prompts import TooLong, encode, split
from eagle_jax.loading.model import Model
from eagle_jax.loop.scoring import PromptScores, compiled_open_scores, compiled_score_chunks
from eagle_jax.loop.state import MAX_TOP_LOGPROBS
from eagle_jax.requests.request import DUMMY_OPTIONS, Request
from eagle_jax.requests.results import PromptLogprobs
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.growing_output import pairs_of
from eagle_jax.scheduling.sizes import chunk_tokens, padded_batch_size, slots_for_tree
from eagle_jax.sharding import to_host


def prompt_logprobs(model: Model, prompts: Any, *, top_logprobs: int = 0) -> Any:
    """Returns the log-probability of each token of a prompt, given the tokens before it, without generating.

    Args:
        model: from `load`.
        prompts: text, chat messages, token ids, or a list of those, as in `generate`.
        top_logprobs: how many of the likeliest tokens to report at each position, 20 at most.

    Returns:
        `PromptLogprobs`; a list of them for a list of prompts.

    Raises:
        ValueError, TypeError: an invalid prompt, or one longer than the model's context; checked before computing.

    Example:
        >>> import eagle_jax
        >>> scored = eagle_jax.prompt_logprobs(eagle_jax.load(), "Tom has 3 apples.")
        >>> scored.logprobs[0] is None and all(value <= 0 for value in scored.logprobs[1:])
        True
    """
    items, many = split(prompts)
    requests = requests_to_score(model, items, top_logprobs, model.context)
    results: dict[int, PromptLogprobs] = {}
    for together in _by_size(model, requests):
        scoring = Scoring(model, together)
        scoring.read(scoring.num_unread)
        results |= zip([request.index for request in together], scoring.results(), strict=True)
    return [results[index] for index in range(len(items))] if many else results[0]


def requests_to_score(model: Model, prompts: Sequence[Any], top_logprobs: int, max_tokens: int) -> list[Request]:
    """Returns a request for each prompt, which reports the `top_logprobs` likeliest tokens at each position.

    Raises:
        ValueError, TypeError: an invalid prompt, one of more than `max_tokens` tokens, or too many `top_logprobs`.
    """
    options = dataclasses.replace(DUMMY_OPTIONS, logprobs=True, top_logprobs=top_logprobs)
    requests = []
    for index, prompt in enumerate(prompts):
        name = "the prompt" if len(prompts) == 1 else f"prompt {index}"
        ids = encode(model.tokenizer, prompt, model.target.config.vocab_size, name)
        if len(ids) > max_tokens:
            raise TooLong(f"{name} has {len(ids)} tokens; there is room for {max_tokens}, so give no more")
        requests.append(Request(index=index, prompt=ids, options=options, seed=0, sample=0))
    return requests


class Scoring:
    """Prompts that are scored together, one on each part of a mesh's `data` axis: `read` until `num_unread` is 0,
    then `results`.

    Attributes:
        requests: the requests of the prompts.
        num_unread: number of chunks of the longest prompt still to be read.
    """

    def __init__(self, model: Model, requests: Sequence[Request]):
        self.requests, self._model = requests, model
        longest = max(len(request.prompt) for request in requests)
        self._num_read, self.num_unread = 0, -(-longest // chunk_tokens())
        slots = _slots(longest)
        tokens = np.zeros((padded_batch_size(model, len(requests)), slots + 1), np.int32)
        lengths = np.ones(len(tokens), np.int32)
        for row, request in enumerate(requests):
            tokens[row, : len(request.prompt)], lengths[row] = request.prompt, len(request.prompt)
        places = (jnp.asarray(lengths), jnp.asarray(tokens))
        if model.sharding is not None:
            places = model.sharding.put(places, model.sharding.state)
        self._inputs = (programs.packed(model.target), *places)
        has_top = any(request.options.top_logprobs for request in requests)
        top = min(MAX_TOP_LOGPROBS, model.target.config.vocab_size) if has_top else 0
        self._scores: PromptScores
        self._scores, _ = programs.call(
            compiled_open_scores(), *self._inputs, slots=slots, top=top, sharding=model.sharding
        )

    def prepare(self) -> None:
        """Compiles what `read` runs, on any thread."""
        programs.ready(*self._call(0), **self._static)

    def read(self, chunks: int) -> int:
        """Reads at most `chunks` further chunks; returns how many it read."""
        count = min(chunks, self.num_unread)
        self._num_read, self.num_unread = self._num_read + count, self.num_unread - count
        self._scores, _ = programs.call(*self._call(self._num_read), **self._static)
        self._scores.num_chunks_read.block_until_ready()
        return count

    def results(self) -> list[PromptLogprobs]:
        """Returns the scores of each prompt once it is read."""
        scores = self._scores
        logprobs, ranks = to_host((scores.logprobs, scores.ranks))
        top = to_host(scores.top)
        results = []
        for row, request in enumerate(self.requests):
            rest, count = slice(1, len(request.prompt)), request.options.top_logprobs
            pairs = pairs_of(top.ids[row, rest], top.logprobs[row, rest], count) if count else None
            results.append(
                PromptLogprobs(
                    token_ids=list(request.prompt),
                    logprobs=[None, *logprobs[row, rest].tolist()],
                    ranks=[None, *ranks[row, rest].tolist()],
                    top_logprobs=None if pairs is None else [None, *pairs],
                )
            )
        return results

    def _call(self, until: int) -> tuple[Any, ...]:
        return compiled_score_chunks(), *self._inputs, self._scores, jnp.asarray(until, jnp.int32)

    @property
    def _static(self) -> dict[str, Any]:
        return {"chunk": chunk_tokens(), "sharding": self._model.sharding}


def _slots(tokens: int) -> int:
    return slots_for_tree(0, tokens, tokens, chunk_tokens())


def _by_size(model: Model, requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Yields batches of requests with the same cache size, so that short prompts do not use large caches."""
    rows = padded_batch_size(model, 1)
    ordered = sorted(requests, key=lambda request: _slots(len(request.prompt)))
    for _, same in itertools.groupby(ordered, lambda request: _slots(len(request.prompt))):
        group = list(same)
        yield from (group[at : at + rows] for at in range(0, len(group), rows))
