"""Fields of requests that name the functions which an answer may call."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.api import FORMATS, FORMS, Chat, ToolFormat, Tools, call_options, read_tools, tool_format_for
from eagle_jax.serving.fields import Fields, flag, wrong


def tools_of(fields: Fields) -> Tools | None:
    """The functions of a request; None where none may be called. Raises `Refused`."""
    parallel = fields.take("parallel_tool_calls", flag, True)
    tools, choice = (fields.take(name, lambda name, value: value, None) for name in ("tools", "tool_choice"))
    try:
        return read_tools(tools, choice, parallel)
    except ValueError as error:
        raise wrong("tools" if str(error).startswith("tools") else "tool_choice", str(error)) from None


def format_for(tokenizer: Any, chat: Chat, tools: Tools | None, stated: str | None) -> ToolFormat | None:
    """The format that a model writes calls in; None where there is nothing to call.

    Args:
        stated: the name of a format; None is the one of the model's chat template.

    Raises:
        Refused: the template knows no tools, or its format is not known here.
    """
    spoken = any(message["role"] == "tool" or "tool_calls" in message for message in chat.messages)
    if tools is None and not spoken:
        return None
    try:
        format = tool_format_for(tokenizer, None if stated is None else FORMATS[stated])
    except ValueError as error:
        raise wrong("messages" if tools is None else "tools", str(error)) from None
    return None if tools is None else format


def form_of_calls(tools: Tools | None, format: ToolFormat | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that hold answers to a call, where a request asks for one. Raises `Refused`."""
    if tools is None or format is None:
        return {}
    try:
        form = call_options(tools, format)
    except ValueError as error:
        raise wrong("tools", str(error)) from None
    other = next((name for name in FORMS if name in options), None)
    if other is not None:
        raise wrong(
            "tools", f'tools beside {other}, whose answers call nothing; give tool_choice "none", or one of them'
        )
    return form
