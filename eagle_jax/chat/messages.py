"""Messages of a conversation, as chat templates read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_jax.chat.reasoning import FIELDS, reasoning_field
from eagle_jax.chat.tool_formats import ToolFormat, format_of
from eagle_jax.fields import Fields, anything, text

Message = Mapping[str, Any]

SAME_ROLES = {"developer": "system"}  # OpenAI's newer name
TEXTS = ("text", "input_text", "output_text")  # kinds of parts, in the names of OpenAI's two interfaces
THOUGHTS = ("thinking", "reasoning", "redacted_thinking")  # before an answer, which are no part of its text
IN_CHANNELS = "<|channel|>"  # in templates of models that answer in channels
# What changes no text: hints for caches, and what an earlier answer came with.
IGNORED_IN_PARTS = dict.fromkeys(
    ("cache_control", "prompt_cache_breakpoint", "annotations", "citations", "logprobs", "id", "index"), anything
)


def is_message(message: Any) -> bool:
    """Returns whether it has a role and a text; a call of functions or a refusal may have no text."""
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    may_be_silent = bool(message.get("tool_calls") or message.get("refusal"))
    has_content = isinstance(content, str | list) or content is None and may_be_silent
    return isinstance(message.get("role"), str) and has_content


def take_content(fields: Fields) -> str | None:
    """Returns the text of a message, or its refusal; None if it has neither.

    `content` is text or a list of parts.

    Raises:
        FieldError: it is neither text nor a list, or a part is no text.
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
    if kind in THOUGHTS:
        fields.ignore(dict.fromkeys((*THOUGHTS, "text", "signature", "data", "summary", "index", "id"), anything))
        return ""
    if kind not in (*TEXTS, "refusal"):
        raise fields.wrong("type", f"={kind[:40]!r}; this model reads text only")
    fields.ignore(IGNORED_IN_PARTS)
    return fields.require("refusal" if kind == "refusal" else "text", text)


def for_template(messages: Sequence[Message], where: str, template: str = "") -> list[dict[str, Any]]:
    """Returns messages in OpenAI's form as templates read them.

    Parts of contents become one text, and arguments of calls objects instead of text. A message without text gets an
    empty one, the answer of a function the function's name, which some templates want, calls the ids that the model
    writes, and earlier reasoning the name that this template reads.

    Raises:
        ValueError: a part of a content is not text, a call is malformed, or its arguments are not JSON.
    """
    names: dict[Any, Any] = {}
    ids: dict[Any, Any] = {}
    prepared, named, format = [], reasoning_field(template), format_of(template)
    number = 0  # of the next call
    fields = Fields({}, ignore_unknown=True)  # templates may read what is not known here
    for i, message in enumerate(messages):
        role, content = message.get("role"), take_content(fields.inside(f"messages[{i}]", dict(message)))
        more: dict[str, Any] = {"role": SAME_ROLES.get(str(role), role), "content": content or ""}
        if calls := message.get("tool_calls"):
            more |= {"tool_calls": _calls(calls, where)}
            names |= {call.get("id"): call["function"].get("name") for call in more["tool_calls"]}
            owned = _with_model_ids(more["tool_calls"], format, number)
            ids |= {call.get("id"): renamed.get("id") for call, renamed in zip(more["tool_calls"], owned, strict=True)}
            more["tool_calls"], number = owned, number + len(owned)
        if named is not None and (thought := _thought(message)) is not None:
            more |= {named: thought}
            if IN_CHANNELS in template and thought and more.get("tool_calls") and content:
                more |= {named: f"{thought}\n\n{content}", "content": ""}  # gpt-oss' has one place for both
        if role == "tool" and message.get("tool_call_id") in names and "name" not in message:
            more |= {"name": names[message["tool_call_id"]]}
        if role == "tool" and message.get("tool_call_id") in ids:
            more |= {"tool_call_id": ids[message["tool_call_id"]]}
        prepared.append({**message, **more})
    return prepared


def _thought(message: Message) -> str | None:
    """Returns a message's earlier reasoning, under any of its names."""
    return next((message[name] for name in FIELDS if isinstance(message.get(name), str)), None)


def _with_model_ids(calls: list[dict[str, Any]], format: ToolFormat | None, number: int) -> list[dict[str, Any]]:
    """Returns calls with the ids that the model writes, if it writes any; `number` is the first one's."""
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
    """Returns the arguments of a call out of their JSON; what is not text is kept. Raises ValueError."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise ValueError(f"{where} no JSON; expected an object, as text") from None
