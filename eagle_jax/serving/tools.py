"""Fields of requests that name the functions which an answer may call."""

import json
from typing import Any

from eagle_jax.api import FORMATS, Chat, ToolFormat, Tools, read_tools, tool_format_for
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
    if tools is not None and tools.choice.mode == "required":
        _enforce(tools)
    return None if tools is None else format


def _enforce(tools: Tools) -> None:
    """Holds an answer to calling a function, by the schema of `eagle_jax.text.tools.call_schema`."""
    asked = "a function's name" if tools.choice.name else json.dumps(tools.choice.mode)
    raise wrong("tool_choice", f'tool_choice with {asked} cannot be enforced here; give "auto", or leave it out')
