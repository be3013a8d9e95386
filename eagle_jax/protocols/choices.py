"""Responses of completions and chats: answers are choices, and a stream ends with [DONE]."""

import abc
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from eagle_jax.protocols.base import PendingResponse, ResponseFormat, event
from eagle_jax.requests.results import CANCELLED, Chunk, Result, without_nan

DONE = b"data: [DONE]\n\n"


class Choices(ResponseFormat):
    """What completions and chats have in common."""

    whole: str
    piece: str

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all answers so far."""
        return 0

    @abc.abstractmethod
    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        """Returns the choice of a complete answer."""

    @abc.abstractmethod
    def more(self, pending: PendingResponse) -> dict[str, Any]:
        """Returns further fields of a response besides its choices."""

    @abc.abstractmethod
    def first(self, pending: PendingResponse, index: int) -> dict[str, Any] | None:
        """Returns the first piece of a choice in a stream, if it has one."""

    @abc.abstractmethod
    def deltas(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        """Returns a piece of an answer as one event or several; none where there is nothing new."""

    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        choices = [self.choice(pending, i, result) for i, result in enumerate(results)]
        body = {"choices": choices, "usage": pending.usage(results, self.reasoning_tokens)} | self.more(pending)
        return pending.head(self.whole) | body

    async def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """None is sent before there is something of an answer: clients take the first one's time for that of the first
        token.
        """
        call, head = pending.call, pending.head(self.piece)
        usage: dict[str, Any] = {"usage": None} if call.include_usage else {}
        counter = _Counter(pending)
        results: dict[int, Result] = {}
        firsts: dict[int, dict[str, Any] | None] = {}  # what each choice begins with, until it was sent
        async for chunk in chunks:
            if chunk.index not in firsts:
                firsts[chunk.index] = self.first(pending, chunk.index)
            if call.continuous_usage:
                usage = {"usage": counter.add(chunk)}
            pieces = [head | {"choices": [choice]} | usage for choice in self.deltas(pending, chunk)]
            if call.reports_steps:
                pieces[-1]["eagle"] = _eagle(pending, chunk)
            if pieces:
                if (first := firsts[chunk.index]) is not None:
                    yield event(head | {"choices": [first]} | usage)
                    firsts[chunk.index] = None
                for piece in pieces:
                    yield event(piece)
            if chunk.result is not None:
                results[chunk.index] = chunk.result
        if call.include_usage:
            ordered = [results[i] for i in range(len(pending.tickets))]
            yield event(head | {"choices": [], "usage": pending.usage(ordered, self.reasoning_tokens)})
        yield DONE


class _Counter:
    """Tokens of each choice so far, which a stream's events report where that is asked for."""

    def __init__(self, pending: PendingResponse):
        self._prompts = [len(ticket.request.prompt) for ticket in pending.tickets]
        self._tokens = [0] * len(self._prompts)

    def add(self, chunk: Chunk) -> dict[str, int]:
        self._tokens[chunk.index] += len(chunk.token_ids)
        prompt, tokens = self._prompts[chunk.index], self._tokens[chunk.index]
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def finish_reason(result: Result) -> str:
    """Returns OpenAI's finish reason; an answer that took too long is cut like one that grew too long."""
    return "length" if result.finish_reason == CANCELLED else result.finish_reason


def _eagle(pending: PendingResponse, chunk: Chunk) -> dict[str, Any]:
    """Returns the field that `"eagle": true` adds to a piece: the step's tokens, and at the end the statistics."""
    fields: dict[str, Any] = {"accepted_lengths": chunk.accepted_lengths, "token_ids": chunk.token_ids}
    if chunk.step is not None:
        fields["step"] = dataclasses.asdict(chunk.step)
    if chunk.result is not None:
        fields |= eagle_of(pending, chunk.index, chunk.result)
    return fields


def eagle_of(pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
    """Returns how an answer was made."""
    stats = without_nan(dataclasses.asdict(result.stats))
    ticket = pending.tickets[index]
    times = {"waited": ticket.waited, "to_first": ticket.to_first, "seconds": ticket.seconds}
    return {"seed": ticket.request.seed, "sample": ticket.request.sample, "stats": stats, "times": times}
