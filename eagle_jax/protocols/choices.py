"""What the responses of completions and chats share: a list of choices, and streams that end with [DONE]."""

import abc
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from eagle_jax.protocols.base import PendingResponse, ResponseFormat, sse_event
from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.requests.results import CANCELLED, Chunk, Result, without_nan

DONE = b"data: [DONE]\n\n"


class Choices(ResponseFormat):
    """Responses with a list of choices."""

    object_type: str
    chunk_object_type: str

    def __init__(self) -> None:
        self._formatters: dict[int, TokenLogprobs] = {}  # by index of the choice

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all answers so far."""
        return 0

    @abc.abstractmethod
    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        """Returns the choice of a complete answer."""

    @abc.abstractmethod
    def extra_fields(self, pending: PendingResponse) -> dict[str, Any]:
        """Returns fields of a response besides those that completions and chats share."""

    @abc.abstractmethod
    def first_choice(self, pending: PendingResponse, index: int) -> dict[str, Any] | None:
        """Returns the choice of a stream's first event, sent before any text; None if there is none."""

    @abc.abstractmethod
    def chunk_choices(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        """Returns the choices of the events for a chunk; empty if the chunk has nothing to send."""

    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        choices = [self.choice(pending, i, result) for i, result in enumerate(results)]
        body = {"choices": choices, "usage": pending.usage(results, self.reasoning_tokens)} | self.extra_fields(pending)
        return pending.common_fields(self.object_type) | body

    async def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """Yields no event before the first token: clients measure the time to first token by it."""
        call, head = pending.call, pending.common_fields(self.chunk_object_type)
        usage: dict[str, Any] = {"usage": None} if call.include_usage else {}
        counter = _UsageCounter(pending)
        results: dict[int, Result] = {}
        first_choices: dict[int, dict[str, Any] | None] = {}  # None once sent
        async for chunk in chunks:
            if chunk.index not in first_choices:
                first_choices[chunk.index] = self.first_choice(pending, chunk.index)
            if call.continuous_usage:
                usage = {"usage": counter.add(chunk)}
            pieces = [head | {"choices": [choice]} | usage for choice in self.chunk_choices(pending, chunk)]
            if call.reports_steps:
                pieces[-1]["eagle"] = _chunk_eagle_fields(pending, chunk)
            if pieces:
                if (first := first_choices[chunk.index]) is not None:
                    yield sse_event(head | {"choices": [first]} | usage)
                    first_choices[chunk.index] = None
                for piece in pieces:
                    yield sse_event(piece)
            if chunk.result is not None:
                results[chunk.index] = chunk.result
        if call.include_usage:
            ordered = [results[i] for i in range(len(pending.tickets))]
            yield sse_event(head | {"choices": [], "usage": pending.usage(ordered, self.reasoning_tokens)})
        yield DONE

    def _formatter(self, pending: PendingResponse, index: int) -> TokenLogprobs:
        if index not in self._formatters:
            ticket = pending.tickets[index]
            before = () if pending.call.echo else ticket.request.prompt  # an echoed prompt is formatted first
            self._formatters[index] = TokenLogprobs(ticket.tokenizer, before)
        return self._formatters[index]


class _UsageCounter:
    """Counts the tokens of each choice, for `continuous_usage_stats`."""

    def __init__(self, pending: PendingResponse):
        self._prompts = [len(ticket.request.prompt) for ticket in pending.tickets]
        self._tokens = [0] * len(self._prompts)

    def add(self, chunk: Chunk) -> dict[str, int]:
        self._tokens[chunk.index] += len(chunk.token_ids)
        prompt, tokens = self._prompts[chunk.index], self._tokens[chunk.index]
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def finish_reason(result: Result) -> str:
    """Returns OpenAI's finish reason; an answer cancelled by a time limit has "length"."""
    return "length" if result.finish_reason == CANCELLED else result.finish_reason


def _chunk_eagle_fields(pending: PendingResponse, chunk: Chunk) -> dict[str, Any]:
    """Returns the field that `"eagle": true` adds to a chunk: the step's tokens, and at the end the statistics."""
    fields: dict[str, Any] = {"accepted_lengths": chunk.accepted_lengths, "token_ids": chunk.token_ids}
    if chunk.step is not None:
        fields["step"] = dataclasses.asdict(chunk.step)
    if chunk.result is not None:
        fields |= eagle_fields(pending, chunk.index, chunk.result)
    return fields


def eagle_fields(pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
    """Returns the seed, statistics and times of an answer."""
    stats = without_nan(dataclasses.asdict(result.stats))
    ticket = pending.tickets[index]
    times = {"waited": ticket.waited, "to_first": ticket.to_first, "seconds": ticket.seconds}
    return {"seed": ticket.request.seed, "sample": ticket.request.sample, "stats": stats, "times": times}
