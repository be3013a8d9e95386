"""Messages of a conversation, as chat templates read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]


def is_message(message: Any) -> bool:
    """Whether it has a role and a text; one that calls functions may have none."""
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    has_content = isinstance(content, str) or content is None and bool(message.get("tool_calls"))
    return isinstance(message.get("role"), str) and has_content


def for_template(messages: Sequence[Message], where: str) -> list[dict[str, Any]]:
    """Messages in OpenAI's form as templates read them: arguments of calls are objects, not text, a message without
    text has an empty one, and the answer of a function has its name, which some templates want.

    Raises:
        ValueError: a call is none, or its arguments are no JSON.
    """
    names: dict[Any, Any] = {}
    prepared = []
    for message in messages:
        calls = message.get("tool_calls")
        more: dict[str, Any] = {}
        if calls:
            more = {"content": message.get("content") or "", "tool_calls": _calls(calls, where)}
            names |= {call.get("id"): call["function"].get("name") for call in more["tool_calls"]}
        if message.get("role") == "tool" and message.get("tool_call_id") in names and "name" not in message:
            more = {"name": names[message["tool_call_id"]]}
        prepared.append({**message, **more})
    return prepared


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    prepared = []
    for call in calls if isinstance(calls, Sequence) else [calls]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError(f'{where} has a call without a function; expected {{"id": ..., "function": {{...}}}}')
        prepared.append({**call, "function": {**function, "arguments": _object(function.get("arguments"), where)}})
    return prepared


def _object(arguments: Any, where: str) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise ValueError(f"{where} has a call whose arguments are no JSON; expected the text of an object") from None
