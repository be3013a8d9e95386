"""/v1/messages of Anthropic's API, translated to chat requests."""

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from eagle_jax.chat.messages import take_content
from eagle_jax.chat.reasoning import ReasoningPiece
from eagle_jax.fields import FieldError, Fields, anything, flag, listed, mapping, number, text
from eagle_jax.protocols.base import PendingResponse, sse_event
from eagle_jax.protocols.calls import Call, chat_call
from eagle_jax.protocols.chat_answers import ChatFormat
from eagle_jax.protocols.choices import finish_reason
from eagle_jax.requests.results import FAILED, Chunk, Result
from eagle_jax.text.detokenize import decode

CHAT_FIELDS = ("model", "top_p", "top_k", "stream", "max_tokens")
# Known fields, with the values that have no effect.
NEUTRAL: dict[str, list[Any]] = {"container": [], "mcp_servers": [[]]}
IGNORED = {
    "metadata": mapping,
    "cache_control": anything,
    "diagnostics": anything,
} | dict.fromkeys(("service_tier", "inference_geo", "speed", "user_profile_id", "workspace_id"), text)
IGNORED_IN_TOOLS = ("strict", "eager_input_streaming", "input_examples", "allowed_callers", "defer_loading")
IGNORED_IN_BLOCKS = dict.fromkeys(("cache_control", "citations", "caller"), anything)
# Anthropic has no stop reason for a failed answer.
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", FAILED: FAILED}
THINKING = {"enabled": True, "disabled": False, "adaptive": None}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERRORS = {
    **{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large"},
    **{429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"},
}


def messages_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/messages as a chat request. Raises `FieldError`."""
    if body.get("max_tokens") is None:
        raise FieldError("max_tokens is missing", "max_tokens")
    return count_tokens_call(body, ignore_unknown)


def count_tokens_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/messages/count_tokens as a chat request; `max_tokens` is optional."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    system = _system(fields)
    messages = [{"role": "system", "content": system}] if system else []
    for message in fields.each("messages", fields.require("messages", listed)):
        messages += _messages(message)
    chat = {name: fields.take(name, anything, None) for name in CHAT_FIELDS}
    chat |= {"temperature": fields.take("temperature", number(0.0, 1.0), None)}
    chat |= {"stop": fields.take("stop_sequences", anything, None)}
    chat |= _tools(fields) | _output(fields) | _thinking(fields.object("thinking"))
    if messages[-1]["role"] == "assistant":  # a prefix of the answer
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    fields.ignore(IGNORED)
    fields.only(NEUTRAL)
    _edits(fields.object("context_management"))
    ignored = fields.end()
    return dataclasses.replace(chat_call(chat | {"messages": messages}), ignored=tuple(ignored))


def _system(fields: Fields) -> str | None:
    value = fields.take("system", anything, None)
    return None if value is None else take_content(fields.inside("system", {"content": value}))


def _messages(fields: Fields) -> Iterator[dict[str, Any]]:
    """Yields a message in OpenAI's format; tool results come first, as messages of their own."""
    role = fields.require("role", text)
    if role not in ("user", "assistant", "system"):
        raise fields.wrong("role", f"={role[:40]!r}; expected user, assistant or system")
    content = fields.require("content", anything)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts, thoughts, calls, num_results = [], [], [], 0
    for block in fields.each("content", blocks):
        kind = block.require("type", text)
        block.ignore(IGNORED_IN_BLOCKS)
        if kind == "text":
            texts.append(block.require("text", text))
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.require("name", text), "arguments": block.require("input", mapping)}
            calls.append({"id": block.require("id", text), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            result = take_content(block) or ""
            num_results += 1
            block.ignore({"is_error": flag})
            yield {"role": "tool", "tool_call_id": block.require("tool_use_id", text), "content": result}
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(block.take("thinking", text, ""))
            block.ignore(dict.fromkeys(("signature", "data"), text))
        else:
            raise block.wrong("type", f"={kind[:40]!r}; this model reads text, tool_use and tool_result only")
    if texts or not num_results:
        reasoning = {"reasoning_content": "".join(thoughts)} if any(thoughts) and role == "assistant" else {}
        yield {"role": role, "content": "".join(texts)} | reasoning | ({"tool_calls": calls} if calls else {})


def _tools(fields: Fields) -> dict[str, Any]:
    """Returns tools and the tool choice in OpenAI's format."""
    tools = []
    for tool in fields.each("tools", fields.take("tools", anything, [])):
        tool.only({"type": ["custom"]})
        tool.ignore(IGNORED_IN_BLOCKS | dict.fromkeys(IGNORED_IN_TOOLS, anything))
        function = {"name": tool.require("name", text), "parameters": tool.require("input_schema", mapping)}
        description = tool.take("description", text, None)
        tools.append({"type": "function", "function": function | ({"description": description} if description else {})})
    choice = fields.object("tool_choice")
    kind = choice.take("type", text, "auto")
    parallel = not choice.take("disable_parallel_tool_use", flag, False)
    if kind == "tool":
        tool_choice: Any = {"type": "function", "function": {"name": choice.require("name", text)}}
    elif kind not in CHOICES:
        raise choice.wrong("type", f"={kind[:40]!r}; expected auto, any, tool or none")
    else:
        tool_choice = CHOICES[kind] if tools or kind == "any" else None
    return {"tools": tools, "tool_choice": tool_choice, "parallel_tool_calls": parallel}


def _output(fields: Fields) -> dict[str, Any]:
    """Returns the response format, under either of its names, and the reasoning effort."""
    config = fields.object("output_config")
    older_format, format = fields.take("output_format", mapping, None), config.take("format", mapping, None)
    format = older_format if format is None else format
    effort = config.take("effort", text, None)
    if format is None:
        return {"reasoning_effort": effort}
    form = config.inside("format", format)
    form.only({"type": ["json_schema"]})
    schema = {"name": "answer", "schema": form.require("schema", mapping)}
    return {"reasoning_effort": effort, "response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(fields: Fields) -> dict[str, Any]:
    """Returns `enable_thinking`, which some chat templates read."""
    kind = fields.take("type", text, "adaptive")
    fields.ignore({"budget_tokens": anything, "display": text})
    if kind not in THINKING:
        raise fields.wrong("type", f"={kind[:40]!r}; expected {', '.join(THINKING)}")
    return {"enable_thinking": THINKING[kind]}


def _edits(fields: Fields) -> None:
    """Checks context edits: only the removal of earlier reasoning is supported."""
    for edit in fields.each("edits", fields.take("edits", anything, [])):
        kind = edit.require("type", text)
        if not kind.startswith("clear_thinking"):
            raise edit.wrong("type", f"={kind[:40]!r} is not supported here; leave it out")
        edit.ignore({"keep": anything})


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Returns an error body in Anthropic's format."""
    kind = ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class Messages(ChatFormat):
    """Messages with content blocks: text, thinking and tool use."""

    prefix = "msg"
    request_field_names = {
        r"stop\b": "stop_sequences",
        r"response_format(\.json_schema)?": "output_config.format",
        r"(tools\[\d+\])\.function\.parameters": r"\1.input_schema",
        r"(tools\[\d+\])\.function": r"\1",
        r"system\.content": "system",
    }

    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        blocks: list[dict[str, Any]] = []
        for piece in self._answers.pieces(pending, 0, result):
            if isinstance(piece, dict):
                blocks.append(_tool_use_block(piece, json.loads(piece["function"]["arguments"])))
                continue
            kind, text = ("text", piece) if isinstance(piece, str) else ("thinking", piece.text)
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append(_empty_block(kind))
            blocks[-1][kind] += text
        usage = _usage(pending, result)
        return _message(pending, usage) | {"content": blocks} | self._stop_fields(pending, result)

    async def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        started, blocks = False, _Blocks()
        async for chunk in chunks:
            pieces = list(self._answers.pieces(pending, 0, chunk))
            if not started and (pieces or chunk.result is not None):
                started = True
                usage = {"input_tokens": len(pending.tickets[0].request.prompt), "output_tokens": 0}
                yield _named_event("message_start", message=_message(pending, usage))
                yield _named_event("ping")
            for piece in pieces:
                for event in blocks.add(piece):
                    yield event
            if chunk.result is not None:
                for event in blocks.close():
                    yield event
                stop_fields = self._stop_fields(pending, chunk.result)
                yield _named_event("message_delta", delta=stop_fields, usage=_usage(pending, chunk.result))
                yield _named_event("message_stop")

    def error(self, status: int, body: dict[str, Any]) -> bytes:
        return b"event: error\n" + sse_event(anthropic_error(status, body["error"]["message"]))

    def _stop_fields(self, pending: PendingResponse, result: Result) -> dict[str, Any]:
        """Returns the stop reason, and the stop sequence if one ended the answer."""
        reason = REASONS[self._answers.finish_reason(0, finish_reason(result))]
        ticket = pending.tickets[0]
        stops = ticket.request.options.stop if reason == "end_turn" else ()
        generated = decode(ticket.tokenizer, result.token_ids) if stops else ""
        stop = next((stop for stop in stops if result.text + stop in generated), None)
        return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop}


class _Blocks:
    """The events of an answer's content blocks."""

    def __init__(self) -> None:
        self._count, self._open = 0, ""  # number of closed blocks, type of the open block

    def add(self, piece: str | ReasoningPiece | dict[str, Any]) -> Iterator[bytes]:
        """Yields the events of a piece of text or reasoning, or of a tool call in OpenAI's format."""
        if isinstance(piece, dict):
            yield from self.close()
            yield from self._begin("tool_use", _tool_use_block(piece, {}))
            yield self._delta({"type": "input_json_delta", "partial_json": piece["function"]["arguments"]})
            yield from self.close()
            return
        kind, text = ("text", piece) if isinstance(piece, str) else ("thinking", piece.text)
        if self._open != kind:
            yield from self.close()
            yield from self._begin(kind, _empty_block(kind))
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def close(self) -> Iterator[bytes]:
        """Ends the open block, if there is one."""
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open:
            yield _named_event("content_block_stop", index=self._count)
            self._count, self._open = self._count + 1, ""

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        self._open = kind
        yield _named_event("content_block_start", index=self._count, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _named_event("content_block_delta", index=self._count, delta=delta)


def _empty_block(kind: str) -> dict[str, Any]:
    """Returns a block with empty text; the signature of reasoning is always empty."""
    return {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})


def _named_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + sse_event({"type": kind} | fields)


def _tool_use_block(call: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}


def _message(pending: PendingResponse, usage: dict[str, Any]) -> dict[str, Any]:
    head = {"id": pending.id, "type": "message", "role": "assistant", "model": pending.name}
    return head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}


def _usage(pending: PendingResponse, result: Result) -> dict[str, Any]:
    usage, cached = pending.usage([result]), result.stats.cached_tokens
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage["completion_tokens"],
    }
