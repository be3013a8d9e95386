"""The data of a response to a request, and the interface of a form of responses."""

import abc
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from eagle_jax.protocols.calls import Call
from eagle_jax.requests.results import Chunk, PromptLogprobs, Result
from eagle_jax.requests.ticket import Ticket


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingResponse:
    """A response in the making: the request, its tickets, and what every part of the response repeats.

    Attributes:
        id: id of the response.
        created: Unix time in seconds.
        name: name of the model, if it has one.
        call: the request.
        tickets: for every prompt its samples, in order; OpenAI's choices.
        scores: for every prompt its own log-probabilities, where they are asked for.
    """

    id: str
    created: int
    name: str | None
    call: Call
    tickets: Sequence[Ticket]
    scores: Sequence[Ticket] = ()

    def scored(self, index: int) -> PromptLogprobs | None:
        """Returns the log-probabilities of a choice's prompt, once they are there."""
        if not self.scores:
            return None
        result = self.scores[index // self.call.samples].latest.result
        return None if result is None else result.prompt_logprobs

    def head(self, kind: str) -> dict[str, Any]:
        """Returns the fields that every response begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.name}

    def usage(self, results: Sequence[Result], reasoning_tokens: int = 0) -> dict[str, Any]:
        """Returns tokens that were read and written; `cached_tokens` are those of prompts that were not read anew,
        `accepted_prediction_tokens` those that the drafter had guessed. Samples of one prompt count it once.

        Args:
            reasoning_tokens: tokens of reasoning among those that were written.
        """
        first_samples = results[:: self.call.samples]
        prompts = sum(result.prompt_tokens for result in first_samples)
        cached = sum(result.stats.cached_tokens for result in first_samples)
        tokens = sum(len(result.token_ids) for result in results)
        accepted = sum(length - 1 for result in results for length in result.stats.accepted_lengths)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": tokens,
            "total_tokens": prompts + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "reasoning_tokens": reasoning_tokens,
            },
        }


@dataclasses.dataclass(frozen=True)
class AnswerFormats:
    """How models write what answers have besides text; None is what their chat templates have.

    Attributes:
        tools: the name of a format of calls.
        reasoning: the name of a format of reasoning, or "none", which leaves it in the text.
    """

    tools: str | None = None
    reasoning: str | None = None


class ResponseFormat(abc.ABC):
    """What an endpoint puts into its responses; one for each request.

    Attributes:
        prefix: begins the ids of responses.
        defaults: options of requests that do not state their own.
        renamed: the interface's own names of a chat's fields, by what matches the chat's.
    """

    prefix: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def with_request_field_names(cls, message: str) -> str:
        """Rewrites an error about a chat's field, with which its message begins, to one about the request's field."""
        pattern_ = next((pattern for pattern in cls.renamed if re.match(pattern, message)), None)
        return message if pattern_ is None else re.sub(pattern_, cls.renamed[pattern_], message, count=1)

    @abc.abstractmethod
    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        """Returns the request as it is put to a model with this tokenizer. Raises `FieldError`."""

    @abc.abstractmethod
    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        """Returns the response in one piece."""

    @abc.abstractmethod
    def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """Yields the events of the response as a stream."""

    def error(self, status: int, body: dict[str, Any]) -> bytes:
        """Returns the event that ends a stream which fails; `body` is the error in OpenAI's form."""
        return event(body)


def event(content: dict[str, Any]) -> bytes:
    """Returns one server-sent event."""
    return b"data: " + encoded(content) + b"\n\n"


def encoded(content: Any) -> bytes:
    """Returns JSON in UTF-8, on one line; half a character (a lone surrogate), which has no UTF-8, becomes "?"."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")
