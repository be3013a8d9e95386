"""Tools that a model may call: validation, and schemas of required calls."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_jax.chat.tool_formats import ToolFormat
from eagle_jax.checks import as_json
from eagle_jax.structured.json_schema import BETWEEN, PLACE_KEYWORD

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
EXPECTED = '{"type": "function", "function": {"name": "...", "parameters": {...}}}'
CHOICES = ("auto", "none", "required")
Tool = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ToolChoice:
    """Which functions an answer may or must call.

    Attributes:
        mode: "auto" leaves it to the model, "none" allows no call, "required" requires a call.
        name: the function that must be called; None is any.
    """

    mode: str
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Tools:
    """Functions that an answer may call.

    Attributes:
        tools: the tools, as chat templates read them.
        choice: which of them may or must be called.
        parallel: whether several calls are allowed.
    """

    tools: list[dict[str, Any]]
    choice: ToolChoice
    parallel: bool

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Parameter schemas by function name."""
        return {name_of(tool): tool["function"]["parameters"] for tool in self.tools}


def read_tools(tools: Any, choice: Any = None, parallel: bool = True) -> Tools | None:
    """Validates the tools of a request in OpenAI's format; returns None if none may be called.

    Raises:
        ValueError: a tool or the choice is invalid.
    """
    checked = check_tools([] if tools is None else tools)
    chosen = check_tool_choice(choice, checked)
    return Tools(checked, chosen, parallel) if checked and chosen.mode != "none" else None


def check_tools(tools: Any) -> list[Tool]:
    """Validates tools in OpenAI's format; missing `parameters` become those of an object without properties.

    Raises:
        ValueError: a tool is invalid, or two have the same name.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise ValueError(f"tools={as_json(tools)}; expected a list of {EXPECTED}")
    checked = [_check_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    names = [name_of(tool) for tool in checked]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"tools has two entries named {duplicates[0]!r}; give each its own name")
    return checked


def check_tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """Validates the tool choice in OpenAI's format. Raises ValueError."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None and choice not in CHOICES:
        raise ValueError(
            f'tool_choice={as_json(choice)}; expected {", ".join(map(json.dumps, CHOICES))} or {{"type": "function", '
            '"function": {"name": "..."}}'
        )
    if not tools and (name is not None or choice == "required"):
        raise ValueError(f"tool_choice={as_json(choice)} without tools; give tools, or leave it out")
    if name is not None and name not in map(name_of, tools):
        raise ValueError(f"tool_choice names {as_json(name)}; expected one of {', '.join(map(name_of, tools))}")
    return ToolChoice(choice) if name is None else ToolChoice("required", name)


def call_schema(
    tools: Sequence[Tool], choice: ToolChoice, format: ToolFormat, *, parallel: bool = True
) -> dict[str, Any] | None:
    """Returns the schema of an answer that calls a tool, in a model's format; None if no call is required.

    Formats that list calls allow several, if `parallel` and the choice names no function; others allow one call.

    Raises:
        ValueError: the format's arguments are not JSON.
    """
    if choice.mode != "required":
        return None
    if format.argument is not None:
        raise ValueError(
            f"tool calls in the format {format.name} are not JSON, so an answer cannot be constrained to a call; give "
            'tool_choice "auto", and no form of the answer'
        )
    calls = [
        _call_schema_of(tool, format, f"tools[{i}]")
        for i, tool in enumerate(tools)
        if choice.name in (None, name_of(tool))
    ]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls, PLACE_KEYWORD: "tools"}
    if format.listed:
        max_items = {} if parallel and choice.name is None else {"maxItems": 1}
        call = {"type": "array", "items": call, "minItems": 1, **max_items, PLACE_KEYWORD: call[PLACE_KEYWORD]}
    if not format.head and not format.bare:
        call = call | {BETWEEN: [format.begin, format.end]}
    return call


def call_options(tools: Tools, format: ToolFormat) -> dict[str, Any]:
    """Returns the options that constrain an answer to a required call; empty if no call is required."""
    schema = call_schema(tools.tools, tools.choice, format, parallel=tools.parallel)
    return {} if schema is None else {"json_schema": schema}


def name_of(tool: Tool) -> str:
    """Returns the name of a tool's function."""
    return tool["function"]["name"]


def _check_tool(where: str, tool: Any) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function" or not isinstance(function.get("name"), str):
        raise ValueError(f"{where}={as_json(tool)}; expected {EXPECTED}")
    unknown = [name for name in function if name not in ("name", "description", "parameters", "strict")]
    if unknown:
        raise ValueError(f"{where}.function has {as_json(unknown[0])}; expected name, description and parameters")
    if not NAME.fullmatch(function["name"]):
        raise ValueError(
            f"{where}.function.name={as_json(function['name'])}; expected 1 to 64 letters, digits, points, _ and -"
        )
    description, parameters = function.get("description"), function.get("parameters")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"{where}.function.description={as_json(description)}; expected text")
    if parameters is not None and (not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object"):
        raise ValueError(f"{where}.function.parameters={as_json(parameters)}; expected a JSON schema of an object")
    description_field = {} if description is None else {"description": description}
    empty_schema = {"type": "object", "properties": {}}
    fields = {
        "name": function["name"],
        **description_field,
        "parameters": dict(empty_schema if parameters is None else parameters),
    }
    return {"type": "function", "function": fields}


def _call_schema_of(tool: Tool, format: ToolFormat, place: str) -> dict[str, Any]:
    """Returns the schema of a call. The parameters' schema is a document of its own, where its references start."""
    place_keyword = {PLACE_KEYWORD: f"{place}.function.parameters"}  # shown in errors about the whole call too
    parameters = {"type": "object"} | tool["function"]["parameters"] | place_keyword
    keywords = ("properties", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    if not any(parameters.get(name) for name in keywords):
        parameters["additionalProperties"] = False  # a function without parameters
    if format.head:
        head = format.head.replace("{name}", name_of(tool)).replace("{index}", "0")
        before, after = f"{format.section[0]}{format.begin}{head}", f"{format.tail}{format.end}{format.section[1]}"
        return parameters | {BETWEEN: [before, after]}
    properties = {"name": {"const": name_of(tool)}, format.arguments: parameters}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
        **place_keyword,
    }
