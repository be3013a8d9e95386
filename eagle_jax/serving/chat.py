"""/v1/chat/completions: a conversation gets its next message."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle_jax.api import Chunk, Result
from eagle_jax.serving.answering import Answering, Shape, answer, eagle_of, finish_reason
from eagle_jax.serving.echo import vllm_prompt_logprobs
from eagle_jax.serving.logprobs import Spelled
from eagle_jax.serving.protocol import chat_call


class Chat(Shape):
    """Choices with a `message`, or a `delta` of one."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self._spelled: dict[int, Spelled] = {}  # each answer's tokens as far as they were told

    def choice(self, answering: Answering, index: int, result: Result) -> dict[str, Any]:
        ticket = answering.tickets[index]
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "finish_reason": finish_reason(result),
            "logprobs": Spelled(ticket.tokenizer).in_chat(result.token_ids, result.logprobs, result.top_logprobs),
        }
        return choice | ({"eagle": eagle_of(answering, index, result)} if answering.call.eagle else {})

    def more(self, answering: Answering) -> dict[str, Any]:
        return vllm_prompt_logprobs(answering, 0)

    def first(self, answering: Answering, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}

    def delta(self, answering: Answering, chunk: Chunk) -> dict[str, Any]:
        spelled = self._spelled.setdefault(chunk.index, Spelled(answering.tickets[chunk.index].tokenizer))
        return {
            "index": chunk.index,
            "delta": {"content": chunk.text} if chunk.text else {},
            "finish_reason": None if chunk.result is None else finish_reason(chunk.result),
            "logprobs": spelled.in_chat(chunk.token_ids, chunk.logprobs, chunk.top_logprobs),
        }


async def chat_completions(request: Request) -> Response:
    """The endpoint."""
    return await answer(request, Chat(), chat_call)
