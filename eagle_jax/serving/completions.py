"""/v1/completions: a prompt is written on."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle_jax.api import Chunk, Result
from eagle_jax.serving.answering import Answering, Shape, answer, eagle_of, finish_reason
from eagle_jax.serving.logprobs import Spelled
from eagle_jax.serving.protocol import completion_call


class Completion(Shape):
    """Choices with `text`."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    def __init__(self) -> None:
        self._spelled: dict[int, Spelled] = {}  # each answer's tokens as far as they were told

    def choice(self, answering: Answering, index: int, result: Result) -> dict[str, Any]:
        ticket = answering.tickets[index]
        choice = {
            "index": index,
            "text": result.text,
            "finish_reason": finish_reason(result),
            "logprobs": Spelled(ticket.tokenizer).in_completion(result.token_ids, result.logprobs, result.top_logprobs),
        }
        return choice | ({"eagle": eagle_of(answering, index, result)} if answering.call.eagle else {})

    def delta(self, answering: Answering, chunk: Chunk) -> dict[str, Any]:
        spelled = self._spelled.setdefault(chunk.index, Spelled(answering.tickets[chunk.index].tokenizer))
        return {
            "index": chunk.index,
            "text": chunk.text,
            "finish_reason": None if chunk.result is None else finish_reason(chunk.result),
            "logprobs": spelled.in_completion(chunk.token_ids, chunk.logprobs, chunk.top_logprobs),
        }


async def completions(request: Request) -> Response:
    """The endpoint."""
    return await answer(request, Completion(), completion_call)
