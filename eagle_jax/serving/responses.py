"""/v1/responses: a conversation gets its next message, in the form of OpenAI's newer API; text only."""

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle_jax.api import Processing, Result
from eagle_jax.serving.answering import Answering, Shape, answer, chunks_of, event
from eagle_jax.serving.choices import finish_reason
from eagle_jax.serving.fields import Fields, listed, mapping, text, wrong
from eagle_jax.serving.protocol import IGNORED, Call, chat_call
from eagle_jax.serving.service import Service

# Fields that mean in a chat what they mean here.
AS_IN_CHATS = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stream", "chat_template_kwargs"),
    *Processing.__annotations__,
    *IGNORED,
)
# Known fields, and the values of them that change nothing.
NEUTRAL: dict[str, list[Any]] = {
    "background": [False],
    "conversation": [],
    "include": [[]],
    "max_tool_calls": [],
    "parallel_tool_calls": [True, False],
    "previous_response_id": [],
    "prompt": [],
    "reasoning": [{}],
    "service_tier": ["auto", "default"],
    "store": [False],
    "stream_options": [{}],
    "text": [{}, {"format": {"type": "text"}}],
    "tool_choice": ["auto", "none"],
    "tools": [[]],
    "top_logprobs": [0],
    "truncation": ["disabled"],
}
TEXTS = ("input_text", "output_text", "text")  # kinds of parts


def responses_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """A request to /v1/responses, as one for a chat. Raises `Refused`."""
    fields = Fields(body, ignored=[] if ignore_unknown else None)
    instructions = fields.take("instructions", text, None)
    messages = [{"role": "system", "content": instructions}] if instructions else []
    messages += fields.must("input", _messages)
    chat = {name: fields.take(name, lambda name, value: value, None) for name in AS_IN_CHATS}
    longest = fields.take("max_output_tokens", lambda name, value: value, None)
    fields.only(NEUTRAL)
    ignored = fields.end()
    call = chat_call(chat | {"messages": messages, "max_completion_tokens": longest})
    return dataclasses.replace(call, ignored=tuple(ignored))


def _messages(name: str, value: Any) -> list[dict[str, Any]]:
    """Text, or a list of messages, of those too that earlier responses gave."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages = []
    for i, item in enumerate(listed(name, value)):
        stated = {key: value for key, value in mapping(f"{name}[{i}]", item).items() if value is not None}
        fields = Fields(stated, f"{name}[{i}].")
        kind = fields.take("type", text, "message")
        if kind != "message":
            raise wrong(f"{name}[{i}].type", f"{name}[{i}].type={kind[:40]!r}; only messages are read here")
        messages.append({"role": fields.must("role", text), "content": fields.must("content", _content)})
        fields.ignore({"id": text, "status": text})
        fields.end()
    return messages


def _content(name: str, value: Any) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(name, f"{name} is neither text nor a list of parts with text")
    return [_part(f"{name}[{i}]", part) for i, part in enumerate(value)]


def _part(name: str, value: Any) -> dict[str, Any]:
    """A part of a message as chats have it."""
    fields = Fields(mapping(name, value), f"{name}.")
    kind = fields.must("type", text)
    if kind not in TEXTS:
        raise wrong(f"{name}.type", f"{name}.type={kind[:40]!r}; this model reads text only")
    part = {"type": "text", "text": fields.must("text", text)}
    fields.ignore({"annotations": lambda name, value: value, "logprobs": lambda name, value: value})
    fields.end()
    return part


class Responses(Shape):
    """A response with one message."""

    prefix = "resp"

    def prepare(self, call: Call, service: Service, name: str) -> Call:
        return call

    def content(self, answering: Answering, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        ended = _status(result)
        return _response(answering, ended, [_message(answering, ended, result.text)], result)

    async def events(self, answering: Answering) -> AsyncIterator[bytes]:
        numbered = _Numbered()
        empty = _message(answering, "in_progress", "")
        place = {"item_id": empty["id"], "output_index": 0, "content_index": 0}
        begun = False
        async for chunk in chunks_of(answering):
            if not begun and (chunk.text or chunk.result is not None):
                begun = True
                under_way = _response(answering, "in_progress", [], None)
                yield numbered.event("response.created", response=under_way)
                yield numbered.event("response.in_progress", response=under_way)
                yield numbered.event("response.output_item.added", output_index=0, item=empty | {"content": []})
                yield numbered.event("response.content_part.added", **place, part=_text(""))
            if chunk.text:
                yield numbered.event("response.output_text.delta", **place, delta=chunk.text, logprobs=[])
            if chunk.result is not None:
                ended = _status(chunk.result)
                item = _message(answering, ended, chunk.result.text)
                yield numbered.event("response.output_text.done", **place, text=chunk.result.text, logprobs=[])
                yield numbered.event("response.content_part.done", **place, part=_text(chunk.result.text))
                yield numbered.event("response.output_item.done", output_index=0, item=item)
                whole = _response(answering, ended, [item], chunk.result)
                yield numbered.event(f"response.{ended}", response=whole)


class _Numbered:
    """Events of one stream, which are numbered and named twice."""

    def __init__(self) -> None:
        self._number = -1

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return f"event: {kind}\n".encode() + event({"type": kind, "sequence_number": self._number} | fields)


def _status(result: Result) -> str:
    return "incomplete" if finish_reason(result) == "length" else "completed"


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(answering: Answering, status: str, text: str) -> dict[str, Any]:
    id = answering.id.replace("resp-", "msg-", 1)
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": [_text(text)]}


def _response(answering: Answering, status: str, output: list[dict[str, Any]], result: Result | None) -> dict[str, Any]:
    options = answering.call.options
    incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": answering.id,
        "object": "response",
        "created_at": answering.created,
        "status": status,
        "error": None,
        "incomplete_details": incomplete,
        "instructions": None,
        "max_output_tokens": options.get("max_new_tokens"),
        "metadata": {},
        "model": answering.name,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": options.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": options.get("top_p"),
        "truncation": "disabled",
        "usage": None if result is None else _usage(answering, result),
    }


def _usage(answering: Answering, result: Result) -> dict[str, Any]:
    usage = answering.usage([result])
    read = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": read.get("cached_tokens", 0)},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


async def responses(request: Request) -> Response:
    """The endpoint."""
    return await answer(request, Responses(), responses_call)
