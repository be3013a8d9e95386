"""Parses the messages of a conversation in OpenAI's format."""

from typing import Any

from eagle_jax.chat.messages import SAME_ROLES, arguments_of, take_content
from eagle_jax.fields import FieldError, Fields, anything, flag, listed, mapping, text, wrong

NEUTRAL_MESSAGE: dict[str, list[Any]] = {
    "type": ["text", "message"],
    "audio": [],
    "function_call": [],
}
# No supported template reads these.
IGNORED_MESSAGE = {"name": text} | dict.fromkeys(
    (
        *("annotations", "cache_control", "id", "status", "parsed", "images"),
        *("reasoning_details", "thinking_blocks", "provider_specific_fields"),
    ),
    anything,
)
IGNORED_CALL = dict.fromkeys(("index", "extra_content", "provider_specific_fields", "cache_control"), anything)
ROLES = ("system", "developer", "user", "assistant", "tool")


def take_messages(request: Fields) -> list[dict[str, Any]]:
    """Returns the messages of a request."""
    return [_message(fields) for fields in request.each("messages", request.require("messages", listed))]


def _message(fields: Fields) -> dict[str, Any]:
    role = take_role(fields)
    message: dict[str, Any] = {"role": SAME_ROLES.get(role, role)}
    if role == "assistant":
        message |= _calls(fields) | ({"prefix": True} if fields.take("prefix", flag, False) else {})
    if role == "tool":
        message |= {"tool_call_id": fields.require("tool_call_id", text)}
        message |= {"name": name} if (name := fields.take("name", text, None)) else {}
    reasoning = fields.take("reasoning_content", text, "") or fields.take("reasoning", text, "")
    fields.ignore({"reasoning": text})
    content = take_content(fields)
    if content is None and "tool_calls" not in message:
        raise fields.wrong("content", " is missing")
    message |= {"reasoning_content": reasoning} if reasoning and role == "assistant" else {}
    fields.only(NEUTRAL_MESSAGE)
    fields.ignore(IGNORED_MESSAGE)
    return message | {"content": content or ""}


def take_role(fields: Fields) -> str:
    """Returns the role of a message."""
    role = fields.require("role", text)
    if role not in ROLES:
        raise fields.wrong("role", f"={role[:40]!r}; expected one of {', '.join(ROLES)}")
    return role


def _calls(fields: Fields) -> dict[str, Any]:
    """Returns the field `tool_calls` of an assistant's message; empty if it has none."""
    calls = []
    entries = fields.each("tool_calls", fields.take("tool_calls", anything, []))
    for entry in entries:
        function = entry.inside("function", entry.require("function", mapping))
        function_fields = {
            "name": function.require("name", text),
            "arguments": function.require("arguments", _arguments),
        }
        calls.append({"id": entry.require("id", text), "type": "function", "function": function_fields})
        entry.only({"type": ["function"]})
        function.ignore({"parsed_arguments": anything})
        entry.ignore(IGNORED_CALL)
    return {"tool_calls": calls} if calls else {}


def _arguments(name: str, value: Any) -> dict[str, Any]:
    """Returns the arguments of a call, given as an object or as JSON text."""
    try:
        return mapping(name, arguments_of(value, f"{name} is"))
    except FieldError:
        raise
    except ValueError as error:
        raise wrong(name, str(error)) from None
