"""Parses the tools of a request."""

from typing import Any

from eagle_jax.chat.tools import Tools, read_tools
from eagle_jax.fields import Fields, anything, flag, wrong

FUNCTION = ("name", "description", "parameters", "strict")


def take_tools(fields: Fields) -> Tools | None:
    """Returns the tools of a request; None if none may be called. Raises `FieldError`."""
    parallel = fields.take("parallel_tool_calls", flag, True)
    tools, choice = (fields.take(name, anything, None) for name in ("tools", "tool_choice"))
    if isinstance(tools, list):
        tools = [_without_ignored(fields, f"tools[{i}].function", tool) for i, tool in enumerate(tools)]
    try:
        return read_tools(tools, choice, parallel)
    except ValueError as error:
        raise wrong("tools" if str(error).startswith("tools") else "tool_choice", str(error)) from None


def _without_ignored(fields: Fields, name: str, tool: Any) -> Any:
    """Returns a tool without ignored fields; a value that is not a tool is returned unchanged."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    inside = fields.inside(name, function)
    inside.ignore({"cache_control": anything})
    stated = {key: value for key in FUNCTION if (value := inside.take(key, anything, None)) is not None}
    return {**tool, "function": stated}
