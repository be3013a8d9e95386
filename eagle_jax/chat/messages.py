"""Converts messages of a conversation to the format that chat templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_jax.chat.reasoning import FIELDS, reasoning_field_of
from eagle_jax.chat.tool_formats import ToolFormat, format_of
from eagle_jax.fields import Fields, anything, text

Message = Mapping[str, Any]

SAME_ROLES = {"developer": "system"}  # "developer" is OpenAI's newer name
TEXT_PARTS = ("text", "input_text", "output_text")  # types of text parts in OpenAI's two APIs
REASONING_PARTS = ("thinking", "reasoning", "redacted_thinking")  # types of parts that are not text of the answer
IN_CHANNELS = "<|channel|>"  # in templates of models that answer in channels
# Cache hints and metadata of earlier answers.
IGNORED_IN_PARTS = dict.fromkeys(
    ("cache_control", "prompt_cache_breakpoint", "annotations", "citations", "logprobs", "id", "index"), anything
)


def is_message(message: Any) -> bool:
    """Returns whether it has a role and content, which tool calls and refusals may lack."""
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    may_be_silent = bool(message.get("tool_calls") or message.get("refusal"))
    has_content = isinstance(content, str | list) or content is None and may_be_silent
    return isinstance(message.get("role"), str) and has_content


def take_content(fields: Fields) -> str | None:
    """Returns the text of a message, given as text or a list of parts, or its refusal; None if it has neither.

    Raises:
        FieldError: `content` is neither text nor a list of text parts.
    """
    value, refusal = fields.take("content", anything, None), fields.take("refusal", text, None)
    if isinstance(value, list):
        return "".join(map(_part, fields.each("content", value)))
    if value is None:
        return refusal
    if not isinstance(value, str):
        raise fields.wrong("content", " is neither text nor a list of parts with text")
    return value


def _part(fields: Fields) -> str:
    kind = fields.require("type", text)
    if kind in REASONING_PARTS:
        fields.ignore(
            dict.fromkeys((*REASONING_PARTS, "text", "signature", "data", "summary", "index", "id"), anything)
        )
        return ""
    if kind not in (*TEXT_PARTS, "refusal"):
        raise fields.wrong("type", f"={kind[:40]!r}; this model reads text only")
    fields.ignore(IGNORED_IN_PARTS)
    return fields.require("refusal" if kind == "refusal" else "text", text)


def template_messages(messages: Sequence[Message], where: str, template: str = "") -> list[dict[str, Any]]:
    """Converts messages in OpenAI's format to what templates read.

    Content parts are joined to one text, missing content becomes "", arguments of calls become objects, tool results
    get the function's name, calls get the ids that the model writes, and reasoning gets the field name that this
    template reads.

    Raises:
        ValueError: a content part is not text, a call is malformed, or its arguments are not JSON.
    """
    names: dict[Any, Any] = {}
    ids: dict[Any, Any] = {}
    prepared, reasoning_name, format = [], reasoning_field_of(template), format_of(template)
    number = 0  # number of the next call
    fields = Fields({}, ignore_unknown=True)  # templates may read further fields
    for i, message in enumerate(messages):
        role, content = message.get("role"), take_content(fields.inside(f"messages[{i}]", dict(message)))
        updates: dict[str, Any] = {"role": SAME_ROLES.get(str(role), role), "content": content or ""}
        if calls := message.get("tool_calls"):
            updates |= {"tool_calls": _calls(calls, where)}
            names |= {call.get("id"): call["function"].get("name") for call in updates["tool_calls"]}
            renamed_calls = _with_model_ids(updates["tool_calls"], format, number)
            ids |= {
                call.get("id"): renamed_call.get("id")
                for call, renamed_call in zip(updates["tool_calls"], renamed_calls, strict=True)
            }
            updates["tool_calls"], number = renamed_calls, number + len(renamed_calls)
        if reasoning_name is not None and (reasoning := _reasoning_of(message)) is not None:
            updates |= {reasoning_name: reasoning}
            if IN_CHANNELS in template and reasoning and updates.get("tool_calls") and content:
                # the template of gpt-oss has one field for both
                updates |= {reasoning_name: f"{reasoning}\n\n{content}", "content": ""}
        if role == "tool" and message.get("tool_call_id") in names and "name" not in message:
            updates |= {"name": names[message["tool_call_id"]]}
        if role == "tool" and message.get("tool_call_id") in ids:
            updates |= {"tool_call_id": ids[message["tool_call_id"]]}
        prepared.append({**message, **updates})
    return prepared


def _reasoning_of(message: Message) -> str | None:
    """Returns a message's reasoning, under any of its field names."""
    return next((message[name] for name in FIELDS if isinstance(message.get(name), str)), None)


def _with_model_ids(calls: list[dict[str, Any]], format: ToolFormat | None, number: int) -> list[dict[str, Any]]:
    """Gives calls the ids that the model writes, if it writes any, numbered from `number`."""
    renamed = []
    for index, call in enumerate(calls, start=number):
        new_id = None if format is None else format.model_call_id(call["function"].get("name"), index)
        renamed.append(call if new_id is None else call | {"id": new_id})
    return renamed


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    prepared = []
    for call in calls if isinstance(calls, Sequence) else [calls]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError(f'{where} has a call without a function; expected {{"id": ..., "function": {{...}}}}')
        arguments = arguments_of(function.get("arguments"), f"{where} has a call whose arguments are")
        prepared.append({**call, "function": {**function, "arguments": arguments}})
    return prepared


def arguments_of(arguments: Any, where: str) -> Any:
    """Parses the JSON text of a call's arguments; returns other values unchanged. Raises ValueError."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise ValueError(f"{where} not JSON; expected the JSON text of an object") from None
