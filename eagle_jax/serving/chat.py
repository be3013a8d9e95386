"""/v1/chat/completions: a conversation gets its next message."""

import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle_jax.api import Chunk, Result, ToolAnswer, ToolFormat
from eagle_jax.serving.answering import Answering, answer
from eagle_jax.serving.choices import Choices, eagle_of, finish_reason
from eagle_jax.serving.echo import vllm_prompt_logprobs
from eagle_jax.serving.logprobs import Spelled, in_text
from eagle_jax.serving.protocol import Call, chat_call
from eagle_jax.serving.service import Service
from eagle_jax.serving.tools import form_of_calls, format_for


class Chat(Choices):
    """Choices with a `message`, or a `delta` of one."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self._spelled: dict[int, Spelled] = {}  # each answer's tokens as far as they were told
        self._format: ToolFormat | None = None
        self._calling: dict[int, ToolAnswer] = {}

    def prepare(self, call: Call, service: Service, name: str) -> Call:
        tokenizer = service.engines[name].model.tokenizer
        self._format = format_for(tokenizer, call.prompts[0], call.tools, service.tool_format)
        form = form_of_calls(call.tools, self._format, call.options)
        return dataclasses.replace(call, options=call.options | form)

    def choice(self, answering: Answering, index: int, result: Result) -> dict[str, Any]:
        ticket, calling = answering.tickets[index], self._calling_of(answering, index)
        if calling is not None:
            calling.add(result.token_ids, result.text, is_last=True)
        plain = {"role": "assistant", "content": result.text, "refusal": None}
        choice = {
            "index": index,
            "message": plain if calling is None else calling.message,
            "finish_reason": self._finish_reason(index, result),
            "logprobs": Spelled(ticket.tokenizer, ticket.request.prompt).in_chat(*in_text(ticket, result)),
        }
        return choice | ({"eagle": eagle_of(answering, index, result)} if answering.call.eagle else {})

    def more(self, answering: Answering) -> dict[str, Any]:
        return vllm_prompt_logprobs(answering, 0)

    def first(self, answering: Answering, index: int) -> dict[str, Any]:
        return _piece(index, {"role": "assistant", "content": ""})

    def deltas(self, answering: Answering, chunk: Chunk) -> list[dict[str, Any]]:
        calling = self._calling_of(answering, chunk.index)
        ticket = answering.tickets[chunk.index]
        spelled = self._spelled.setdefault(chunk.index, Spelled(ticket.tokenizer, ticket.request.prompt))
        deltas = [{"content": chunk.text} if chunk.text else {}]
        if calling is not None:
            deltas = calling.add(chunk.token_ids, chunk.text, is_last=chunk.result is not None) or [{}]
        is_silent = not deltas[-1] and not (chunk.result or chunk.logprobs or answering.call.eagle)
        if is_silent:
            return []
        *pieces, last = [_piece(chunk.index, delta) for delta in deltas]
        last["finish_reason"] = None if chunk.result is None else self._finish_reason(chunk.index, chunk.result)
        last["logprobs"] = spelled.in_chat(*in_text(ticket, chunk))
        return [*pieces, last]

    def _calling_of(self, answering: Answering, index: int) -> ToolAnswer | None:
        """What a choice calls, if it may call anything."""
        tools, ticket = answering.call.tools, answering.tickets[index]
        if self._format is None or tools is None:
            return None
        if index not in self._calling:
            self._calling[index] = ToolAnswer(
                ticket.tokenizer, self._format, tools, f"{answering.id}-{index}", ticket.request.prompt
            )
        return self._calling[index]

    def _finish_reason(self, index: int, result: Result) -> str:
        reason = finish_reason(result)
        return self._calling[index].finish_reason(reason) if index in self._calling else reason


def _piece(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}


async def chat_completions(request: Request) -> Response:
    """The endpoint."""
    return await answer(request, Chat(), chat_call)
