"""Messages of a conversation: what people, models and functions say, and what was called."""

from typing import Any

from eagle_jax.chat.messages import SAME_ROLES, arguments_of, content_of
from eagle_jax.fields import FieldError, Fields, anything, flag, listed, mapping, text, wrong

NEUTRAL_MESSAGE: dict[str, list[Any]] = {
    "type": ["text", "message"],
    "audio": [],
    "function_call": [],
}
# What people and models are called, and what an answer came with, no template here reads.
IGNORED_MESSAGE = {"name": text} | dict.fromkeys(
    (
        *("annotations", "cache_control", "id", "status", "parsed", "images"),
        *("reasoning_details", "thinking_blocks", "provider_specific_fields"),
    ),
    anything,
)
IGNORED_CALL = dict.fromkeys(("index", "extra_content", "provider_specific_fields", "cache_control"), anything)
ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_of(request: Fields) -> list[dict[str, Any]]:
    """Returns the messages of a request."""
    return [_message(fields) for fields in request.each("messages", request.require("messages", listed))]


def _message(fields: Fields) -> dict[str, Any]:
    role = role_of(fields)
    message: dict[str, Any] = {"role": SAME_ROLES.get(role, role)}
    if role == "assistant":
        message |= _calls(fields) | ({"prefix": True} if fields.take("prefix", flag, False) else {})
    if role == "tool":
        message |= {"tool_call_id": fields.require("tool_call_id", text)}
        message |= {"name": name} if (name := fields.take("name", text, None)) else {}
    thought = fields.take("reasoning_content", text, "") or fields.take("reasoning", text, "")
    fields.ignore({"reasoning": text})
    content = content_of(fields)
    if content is None and "tool_calls" not in message:
        raise fields.wrong("content", " is missing")
    message |= {"reasoning_content": thought} if thought and role == "assistant" else {}
    fields.only(NEUTRAL_MESSAGE)
    fields.ignore(IGNORED_MESSAGE)
    return message | {"content": content or ""}


def role_of(fields: Fields) -> str:
    """Returns the role of a message."""
    role = fields.require("role", text)
    if role not in ROLES:
        raise fields.wrong("role", f"={role[:40]!r}; expected one of {', '.join(ROLES)}")
    return role


def _calls(fields: Fields) -> dict[str, Any]:
    """Returns the calls of an assistant's message; empty where there are none."""
    calls = []
    entries = fields.each("tool_calls", fields.take("tool_calls", anything, []))
    for entry in entries:
        function = entry.inside("function", entry.require("function", mapping))
        called = {"name": function.require("name", text), "arguments": function.require("arguments", _arguments)}
        calls.append({"id": entry.require("id", text), "type": "function", "function": called})
        entry.only({"type": ["function"]})
        function.ignore({"parsed_arguments": anything})
        entry.ignore(IGNORED_CALL)
    return {"tool_calls": calls} if calls else {}


def _arguments(name: str, value: Any) -> dict[str, Any]:
    """Returns the arguments of a call: text of a JSON object, or one."""
    try:
        return mapping(name, arguments_of(value, f"{name} is"))
    except FieldError:
        raise
    except ValueError as error:
        raise wrong(name, str(error)) from None
