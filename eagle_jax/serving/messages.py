"""Messages of a conversation: what people, models and functions say, and what was called."""

import json
from typing import Any

from eagle_jax.serving.fields import Fields, listed, mapping, text, wrong

NEUTRAL_MESSAGE: dict[str, list[Any]] = {
    "type": ["text", "message"],
    "refusal": [],
    "audio": [],
    "annotations": [[]],
    "function_call": [],
}
# What people and models are called, and what a model thought before it answered, no template here reads.
IGNORED_MESSAGE = {"name": text, "reasoning_content": text, "reasoning": text}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def messages_of(request: Fields) -> list[dict[str, Any]]:
    """The messages of a request."""
    return [_message(request, i, entry) for i, entry in enumerate(request.must("messages", listed))]


def _message(request: Fields, index: int, value: Any) -> dict[str, Any]:
    where = f"messages[{index}]"
    fields = request.inside(f"{where}.", mapping(where, value))
    role = fields.must("role", text)
    if role not in ROLES:
        raise wrong(f"{where}.role", f"{where}.role={role[:40]!r}; expected one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": ROLES[role]}
    if role == "assistant":
        message |= _calls(fields, where)
    if role == "tool":
        message |= {"tool_call_id": fields.must("tool_call_id", text)}
        message |= {"name": name} if (name := fields.take("name", text, None)) else {}
    may_be_silent = "tool_calls" in message
    message["content"] = fields.take("content", _content, "") if may_be_silent else fields.must("content", _content)
    fields.only(NEUTRAL_MESSAGE)
    fields.ignore(IGNORED_MESSAGE)
    fields.end()
    return message


def _content(name: str, value: Any) -> str:
    """Text, or OpenAI's list of parts, of which only text can be read here."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong(name, f"{name} is neither text nor a list of parts with text")
    parts = []
    for i, part in enumerate(value):
        fields = Fields(mapping(f"{name}[{i}]", part), f"{name}[{i}].")
        kind = fields.must("type", text)
        if kind != "text":
            raise wrong(f"{name}[{i}].type", f"{name}[{i}].type={kind[:40]!r}; this model reads text only")
        parts.append(fields.must("text", text))
        fields.end()
    return "".join(parts)


def _calls(fields: Fields, where: str) -> dict[str, Any]:
    """What an assistant's message called; nothing where it called nothing."""
    nothing: list[Any] = []
    entries = fields.take("tool_calls", lambda name, value: value if value == [] else listed(name, value), nothing)
    calls = []
    for i, entry in enumerate(entries):
        inside = fields.inside(f"{where}.tool_calls[{i}].", mapping(f"{where}.tool_calls[{i}]", entry))
        function = fields.inside(f"{where}.tool_calls[{i}].function.", inside.must("function", mapping))
        called = {"name": function.must("name", text), "arguments": function.must("arguments", _object)}
        calls.append({"id": inside.must("id", text), "type": "function", "function": called})
        inside.only({"type": ["function"], "index": list(range(len(entries)))})
        for one in (function, inside):
            one.end()
    return {"tool_calls": calls} if calls else {}


def _object(name: str, value: Any) -> dict[str, Any]:
    """Arguments of a call: text of a JSON object, or one."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            raise wrong(name, f"{name} is no JSON; expected an object, as text") from None
    return mapping(name, value)
