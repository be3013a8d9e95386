"""Requests and their partial outputs."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_jax.chat.prompts import TooLong, encode
from eagle_jax.loading.model import Model
from eagle_jax.requests.options import Options
from eagle_jax.requests.processing import bad_word_ids, check_ids
from eagle_jax.requests.results import Step
from eagle_jax.structured.automaton_cache import CompiledAutomaton, make_automaton
from eagle_jax.structured.table_sizes import Words
from eagle_jax.structured.token_automaton import TokenAutomaton
from eagle_jax.text.detokenize import has_text, special_ids


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for one answer.

    Attributes:
        index: number of its prompt within a call.
        prompt: token ids.
        options: sampling and stopping options.
        seed: seed of the noise.
        sample: number of the answer among several to one prompt and seed; it seeds the noise too.
        bad_words: token sequences of the options' bad words.
        structured: automaton of its structured output, with the time to compile it; None for free text.
        cache_salt: prompts with different salts share no cached prefix.
        submitted: time of submission, by `time.perf_counter`.
    """

    index: int
    prompt: list[int]
    options: Options
    seed: int
    sample: int
    bad_words: Words = ()
    structured: CompiledAutomaton | None = dataclasses.field(default=None, compare=False)
    cache_salt: str = ""
    submitted: float = dataclasses.field(default_factory=time.perf_counter, compare=False)

    @property
    def automaton(self) -> TokenAutomaton | None:
        """The automaton of its structured output; None for free text."""
        assert self.options.form is None or self.structured is not None, "with_form was not called"
        return None if self.structured is None else self.structured.automaton


DUMMY_OPTIONS = Options(max_new_tokens=1, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, stop=(), logprobs=False)
DUMMY_REQUEST = Request(index=-1, prompt=[0], options=DUMMY_OPTIONS, seed=0, sample=0)  # for an unused row
WITH_TABLES = dataclasses.replace(DUMMY_REQUEST, options=dataclasses.replace(DUMMY_OPTIONS, presence_penalty=1.0))


@dataclasses.dataclass(frozen=True)
class PartialOutput:
    """An answer so far.

    Attributes:
        token_ids: tokens so far.
        committed_at_step: the step that committed each token, from 1; 0 for the first token, which prefill draws.
        logprobs: log-probability of each token; None unless requested.
        top_logprobs: the top tokens at each position, with their log-probabilities; None unless requested.
        trees: the last draft tree before each poll, by step, if trees are recorded.
        seconds: time of all steps until the last poll.
    """

    token_ids: Sequence[int]
    committed_at_step: Sequence[int]
    logprobs: Sequence[float] | None
    top_logprobs: Sequence[list[tuple[int, float]]] | None = None
    trees: Mapping[int, Step] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def first(self, tokens: int) -> "PartialOutput":
        """Returns the first `tokens` tokens."""
        return dataclasses.replace(
            self,
            token_ids=self.token_ids[:tokens],
            committed_at_step=self.committed_at_step[:tokens],
            logprobs=None if self.logprobs is None else self.logprobs[:tokens],
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[:tokens],
        )


NO_OUTPUT = PartialOutput([], [], None)


def requests_for(
    model: Model, prompts: list[Any], options: list[Options], seeds: list[int], samples: int = 1
) -> list[Request]:
    """Returns a request for each of `samples` answers to each prompt, in order; `with_form` adds structured output.

    A stop string that names a special token, which has no text, becomes a stop token.

    Raises:
        ValueError, TypeError: a prompt is invalid, or too long for the model's context.
    """
    requests: list[Request] = []
    submitted, vocab_size = time.perf_counter(), model.target.config.vocab_size
    for index, prompt in enumerate(prompts):
        name = "the prompt" if len(prompts) == 1 else f"prompt {index}"
        ids = encode(model.tokenizer, prompt, vocab_size, name)
        if len(ids) >= model.context:
            raise TooLong(
                f"{name} has {len(ids)} tokens; the model's context is {model.context}, "
                f"so it can have at most {model.context - 1}"
            )
        check_ids(options[index], vocab_size)
        bad_words = bad_word_ids(options[index].bad_words, model.tokenizer, vocab_size)
        ends = tuple(id_ for id_ in special_ids(model.tokenizer, options[index].stop) if id_ < vocab_size)
        requests += [
            Request(
                index=index,
                prompt=ids,
                options=dataclasses.replace(options[index], stop_token_ids=options[index].stop_token_ids + ends),
                seed=seeds[index],
                sample=sample,
                bad_words=bad_words,
                submitted=submitted,
            )
            for sample in range(samples)
        ]
    return requests


def with_form(model: Model, request: Request, stopping: threading.Event | None = None) -> Request:
    """Adds the automaton of structured output to a request that has any. Raises as `make_automaton`."""
    if request.options.form is None:
        return request
    vocab_size = model.target.config.vocab_size
    begins_text = model.tokenizer is not None and not has_text(model.tokenizer, request.prompt)
    automaton = make_automaton(
        request.options.form, model.tokenizer, vocab_size, model.stop_ids, stopping, begins_text=begins_text
    )
    return dataclasses.replace(request, structured=automaton)


def fit_request(request: Request, max_tokens: int, *, fill: bool) -> Request:
    """Checks that prompt and answer have at most `max_tokens` together; with `fill`, sets the answer to fill them.

    Raises:
        TooLong: they may have more.
    """
    length, room = len(request.prompt), max_tokens - len(request.prompt)
    if room < 1:
        raise TooLong(
            f"the prompt has {length} tokens; this engine has room for {max_tokens} of prompt and answer "
            f"together, so it can have at most {max_tokens - 1}"
        )
    if fill:
        return dataclasses.replace(request, options=dataclasses.replace(request.options, max_new_tokens=room))
    if request.options.max_new_tokens > room:
        raise TooLong(
            f"the prompt has {length} tokens and its answer may have {request.options.max_new_tokens}; this engine "
            f"has room for {max_tokens} together, so ask for at most {room}"
        )
    return request
