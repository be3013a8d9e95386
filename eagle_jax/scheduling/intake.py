"""Makes requests of what threads submit to an engine."""

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from typing import Any

from eagle_jax.chat.prompts import encode
from eagle_jax.loading.model import Model
from eagle_jax.requests.options import sample_number
from eagle_jax.requests.request import Request, with_form
from eagle_jax.requests.ticket import EngineClosed, QueueFull
from eagle_jax.scheduling.batch_shape import requests_that_fit
from eagle_jax.scheduling.scoring import requests_to_score
from eagle_jax.structured.form_workers import FormsBusy, FormsStopped


class Intake:
    """Makes requests that fit an engine, for any thread.

    Tokenizers refuse several threads at once, so one waits for another here; automata of structured output, which may
    take seconds, are made in another thread.
    """

    def __init__(self, model: Model, max_tokens: int):
        self._model, self._max_tokens, self._tokenizing = model, max_tokens, threading.Lock()
        self._stopping = threading.Event()
        if model.tokenizer is not None:
            model.tokenizer(
                "a"
            )  # the first use may change it (truncation is turned off): not while other threads use it

    def requests(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int | None,
        seed: Any,
        cache_salt: str,
        samples: Sequence[int],
        **values: Any,
    ) -> list[Request]:
        """Makes requests for `samples` of each prompt, prompt by prompt; `values` are options.

        Raises:
            QueueFull, EngineClosed: `FormWorkers.make` is busy or was stopped.
        """
        with self._tokenizing:
            fitted = requests_that_fit(self._model, prompts, max_new_tokens, seed, self._max_tokens, **values)
        try:
            fitted = [with_form(self._model, request, self._stopping) for request in fitted]
        except FormsBusy as error:
            raise QueueFull(str(error)) from None
        except FormsStopped:
            raise EngineClosed("the engine is about to stop and makes no more forms of answers; ask again") from None
        answers = itertools.product(fitted, map(sample_number, samples))
        return [dataclasses.replace(request, sample=sample, cache_salt=cache_salt) for request, sample in answers]

    def room_for(self, prompt: Any, max_new_tokens: int | None) -> int:
        """Returns the number of tokens that an answer may have."""
        greedy = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        [request] = self.requests([prompt], max_new_tokens, 0, "", [0], **greedy)
        return request.options.max_new_tokens

    def stop_forms(self) -> None:
        """Refuses requests whose forms are not ready yet."""
        self._stopping.set()

    def to_score(self, prompts: Sequence[Any], top_logprobs: int) -> list[Request]:
        """Returns requests for the log-probabilities of prompts alone."""
        with self._tokenizing:
            return requests_to_score(self._model, prompts, top_logprobs, self._max_tokens)

    def encode(self, prompt: Any) -> list[int]:
        """Returns the token ids of a prompt."""
        with self._tokenizing:
            return encode(self._model.tokenizer, prompt, self._model.target.config.vocab_size, "the prompt")
