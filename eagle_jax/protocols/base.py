"""What all protocols share: a response that is not ready yet, and the interface of response formats."""

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
    """A response that is not ready yet.

    Attributes:
        id: id of the response.
        created: Unix time in seconds.
        name: name of the model, if it has one.
        call: the request.
        tickets: the samples of each prompt, in order; OpenAI's choices.
        scores: one ticket per prompt for the prompt's own log-probabilities, if requested.
    """

    id: str
    created: int
    name: str | None
    call: Call
    tickets: Sequence[Ticket]
    scores: Sequence[Ticket] = ()

    def prompt_logprobs(self, index: int) -> PromptLogprobs | None:
        """Returns the log-probabilities of a choice's prompt; None until they are computed."""
        if not self.scores:
            return None
        result = self.scores[index // self.call.samples].latest.result
        return None if result is None else result.prompt_logprobs

    def common_fields(self, object_type: str) -> dict[str, Any]:
        """Returns the fields that every response and chunk begins with."""
        return {"id": self.id, "object": object_type, "created": self.created, "model": self.name}

    def usage(self, results: Sequence[Result], reasoning_tokens: int = 0) -> dict[str, Any]:
        """Returns OpenAI's `usage`: `cached_tokens` came from the prefix cache, `accepted_prediction_tokens` from
        the drafter. A prompt counts once for all its samples.
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
    """How models write tool calls and reasoning; None detects the format from the chat template.

    Attributes:
        tools: name of a tool call format.
        reasoning: name of a reasoning format, or "none" to leave reasoning in the text.
    """

    tools: str | None = None
    reasoning: str | None = None


class ResponseFormat(abc.ABC):
    """The format of an endpoint's responses; one instance per request.

    Attributes:
        prefix: prefix of response ids.
        defaults: default options of requests.
        request_field_names: the endpoint's field names, by regular expressions of the chat field names they map to.
    """

    prefix: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    request_field_names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def with_request_field_names(cls, message: str) -> str:
        """Replaces the chat field name at the beginning of an error message with the endpoint's own field name."""
        matching = next((pattern for pattern in cls.request_field_names if re.match(pattern, message)), None)
        return message if matching is None else re.sub(matching, cls.request_field_names[matching], message, count=1)

    @abc.abstractmethod
    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        """Adapts the request to a model with this tokenizer. Raises `FieldError`."""

    @abc.abstractmethod
    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        """Returns the body of the complete response."""

    @abc.abstractmethod
    def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """Yields the server-sent events of a streamed response."""

    def error(self, status: int, body: dict[str, Any]) -> bytes:
        """Returns the last event of a failed stream; `body` is the error in OpenAI's format."""
        return sse_event(body)


def sse_event(content: dict[str, Any]) -> bytes:
    """Encodes one server-sent event."""
    return b"data: " + encode_json(content) + b"\n\n"


def encode_json(content: Any) -> bytes:
    """Encodes JSON in UTF-8, on one line; a lone surrogate becomes "?"."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")
