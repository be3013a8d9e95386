"""Parses requests to /v1/responses as chat requests."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.chat.messages import take_content
from eagle_jax.fields import Fields, anything, flag, text
from eagle_jax.protocols.calls import IGNORED, Call, chat_call
from eagle_jax.protocols.messages import take_role
from eagle_jax.requests.processing import Processing

# Fields with the same meaning in a chat request.
CHAT_FIELDS = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stream", "chat_template_kwargs"),
    *("parallel_tool_calls", "cache_salt"),
    *Processing.__annotations__,
    *IGNORED,
)
# Known fields, with the values that have no effect.
NEUTRAL: dict[str, list[Any]] = {
    "background": [False],
    "conversation": [],
    "include": [[], ["reasoning.encrypted_content"]],
    "previous_response_id": [],
    "prompt": [],
    "top_logprobs": [0],
    "truncation": ["auto", "disabled"],
}
IGNORED_IN_ITEMS = {"status": text, "id": text, "phase": text, "caller": anything, "cache_control": anything}


def responses_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/responses as a chat request. Raises `FieldError`."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    instructions = fields.take("instructions", text, None)
    messages = [{"role": "system", "content": instructions}] if instructions else []
    messages += _messages(fields, fields.require("input", anything))
    chat = {name: fields.take(name, anything, None) for name in CHAT_FIELDS}
    chat |= {"max_completion_tokens": fields.take("max_output_tokens", anything, None)}
    chat |= _form(fields.object("text")) | _tools(fields)
    reasoning = fields.object("reasoning")
    chat |= {"reasoning_effort": reasoning.take("effort", text, None)}
    reasoning.ignore({"summary": text, "generate_summary": text})
    fields.object("stream_options").ignore({"include_obfuscation": flag})
    fields.ignore({"max_tool_calls": anything})  # limits built-in tools, of which there are none
    fields.only(NEUTRAL)
    ignored = fields.end()
    call = chat_call(chat | {"messages": messages})
    return dataclasses.replace(call, ignored=tuple(ignored))


def _messages(request: Fields, value: Any) -> list[dict[str, Any]]:
    """Converts a text or a list of items, which may come from earlier responses, to chat messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if value == []:
        raise request.wrong("input", " is an empty list; expected text, or at least one item")
    messages: list[dict[str, Any]] = []
    reasoning = ""  # before the answer or the call that follows
    for item in request.each("input", value):
        kind = item.take("type", text, "message")
        item.ignore(IGNORED_IN_ITEMS)
        if kind == "message":
            if (content := take_content(item)) is None:
                raise item.wrong("content", " is missing")
            role = take_role(item)
            messages.append({"role": role, "content": content} | _reasoning(reasoning if role == "assistant" else ""))
            reasoning = ""
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1] |= _reasoning(messages[-1].get("reasoning_content", "") + reasoning)
            reasoning = ""
            function = {"name": item.require("name", text), "arguments": item.require("arguments", text)}
            call = {"id": item.require("call_id", text), "type": "function", "function": function}
            messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", []), call]
        elif kind == "function_call_output":
            output = {"content": item.require("output", anything)}
            content = take_content(item.inside("output", output)) or ""
            messages.append({"role": "tool", "tool_call_id": item.require("call_id", text), "content": content})
        elif kind == "reasoning":
            parts = item.each("content", item.take("content", anything, []))
            reasoning += "".join(part.take("text", text, "") for part in parts)
            for part in parts:
                part.ignore({"type": text})
            item.ignore(dict.fromkeys(("summary", "encrypted_content"), anything))
        elif kind == "item_reference":
            raise item.wrong("type", "='item_reference', but no items are stored; send the item itself, store=false")
        else:
            expected = "message, function_call, function_call_output or reasoning"
            raise item.wrong("type", f"={kind[:40]!r} is not supported; expected {expected}")
    return messages


def _reasoning(thought: str) -> dict[str, Any]:
    return {"reasoning_content": thought} if thought else {}


def _form(fields: Fields) -> dict[str, Any]:
    """Returns the field `response_format` of a chat request."""
    fields.ignore({"verbosity": text})
    format = fields.object("format")
    kind = format.take("type", text, "text")
    if kind != "json_schema":
        return {"response_format": {"type": kind}}
    keys = ("name", "description", "schema", "strict")
    definition = {name: value for name in keys if (value := format.take(name, anything, None)) is not None}
    return {"response_format": {"type": kind, "json_schema": definition}}


def _tools(fields: Fields) -> dict[str, Any]:
    """Returns tools and the tool choice in the format of chats."""
    tools = []
    for tool in fields.each("tools", fields.take("tools", anything, [])):
        kind = tool.require("type", text)
        if kind != "function":
            raise tool.wrong("type", f"={kind[:40]!r}; only functions are supported")
        keys = ("name", "description", "parameters", "strict")
        definition = {name: value for name in keys if (value := tool.take(name, anything, None)) is not None}
        tools.append({"type": "function", "function": definition})
    choice = fields.take("tool_choice", anything, None)
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {"tools": tools, "tool_choice": choice}
