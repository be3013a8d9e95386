"""Responses of completions and chats: answers are choices, and a stream ends with [DONE]."""

import abc
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from eagle_jax.api import CANCELLED, Chunk, Result, without_nan
from eagle_jax.serving.answering import Answering, Shape, chunks_of, event

DONE = b"data: [DONE]\n\n"


class Choices(Shape):
    """What completions and chats have in common."""

    whole: str
    piece: str

    @abc.abstractmethod
    def choice(self, answering: Answering, index: int, result: Result) -> dict[str, Any]:
        """A whole answer."""

    @abc.abstractmethod
    def more(self, answering: Answering) -> dict[str, Any]:
        """Further fields of a response beside its choices."""

    @abc.abstractmethod
    def first(self, answering: Answering, index: int) -> dict[str, Any] | None:
        """What a choice of a stream begins with, if with anything."""

    @abc.abstractmethod
    def deltas(self, answering: Answering, chunk: Chunk) -> list[dict[str, Any]]:
        """A piece of an answer, in one event or in several."""

    def content(self, answering: Answering, results: Sequence[Result]) -> dict[str, Any]:
        choices = [self.choice(answering, i, result) for i, result in enumerate(results)]
        told = {"choices": choices, "usage": answering.usage(results)} | self.more(answering)
        return answering.head(self.whole) | told

    async def events(self, answering: Answering) -> AsyncIterator[bytes]:
        """None is sent before there is something of an answer: clients take the first one's time for that of the first
        token.
        """
        call, head = answering.call, answering.head(self.piece)
        usage: dict[str, Any] = {"usage": None} if call.include_usage else {}
        results: dict[int, Result] = {}
        firsts: dict[int, dict[str, Any] | None] = {}  # what each choice begins with, until it was sent
        async for chunk in chunks_of(answering):
            if chunk.index not in firsts:
                firsts[chunk.index] = self.first(answering, chunk.index)
            pieces = [head | {"choices": [choice]} | usage for choice in self.deltas(answering, chunk)]
            if call.eagle:
                pieces[-1]["eagle"] = _eagle(answering, chunk)
            if chunk.text or chunk.logprobs or chunk.result is not None or call.eagle:
                if (first := firsts[chunk.index]) is not None:
                    yield event(head | {"choices": [first]} | usage)
                    firsts[chunk.index] = None
                for piece in pieces:
                    yield event(piece)
            if chunk.result is not None:
                results[chunk.index] = chunk.result
        if call.include_usage:
            ordered = [results[i] for i in range(len(answering.tickets))]
            yield event(head | {"choices": [], "usage": answering.usage(ordered)})
        yield DONE


def finish_reason(result: Result) -> str:
    """OpenAI's word; an answer that took too long is cut as one that grew too long."""
    return "length" if result.finish_reason == CANCELLED else result.finish_reason


def _eagle(answering: Answering, chunk: Chunk) -> dict[str, Any]:
    """What `"eagle": true` adds to a piece of a stream: what came with one step, and at the end how it all went."""
    fields: dict[str, Any] = {"accepted_lengths": chunk.accepted_lengths, "token_ids": chunk.token_ids}
    if chunk.step is not None:
        fields["step"] = dataclasses.asdict(chunk.step)
    if chunk.result is not None:
        fields |= eagle_of(answering, chunk.index, chunk.result)
    return fields


def eagle_of(answering: Answering, index: int, result: Result) -> dict[str, Any]:
    """How an answer was made."""
    stats = without_nan(dataclasses.asdict(result.stats))
    ticket = answering.tickets[index]
    times = {"waited": ticket.waited, "to_first": ticket.to_first, "seconds": ticket.seconds}
    return {"seed": ticket.request.seed, "sample": ticket.request.sample, "stats": stats, "times": times}
