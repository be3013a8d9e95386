"""The functions that a model may call: what a request says of them, and the form that calls of them have to have."""

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
        mode: "auto" leaves it to the model, "none" lets it call nothing, "required" wants a call.
        name: the function that has to be called; None is any.
    """

    mode: str
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Tools:
    """Functions that an answer may call.

    Attributes:
        tools: they, as chat templates read them.
        choice: which of them may or must be called.
        parallel: whether several calls are wanted.
    """

    tools: list[dict[str, Any]]
    choice: ToolChoice
    parallel: bool

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """The schemas of their parameters, by name."""
        return {name_of(tool): tool["function"]["parameters"] for tool in self.tools}


def read_tools(tools: Any, choice: Any = None, parallel: bool = True) -> Tools | None:
    """Returns the functions that a request names, in OpenAI's form; None where none may be called.

    Raises:
        ValueError: a tool is not valid, or the choice is none of them.
    """
    checked = check_tools([] if tools is None else tools)
    chosen = check_tool_choice(choice, checked)
    return Tools(checked, chosen, parallel) if checked and chosen.mode != "none" else None


def check_tools(tools: Any) -> list[Tool]:
    """Returns tools in OpenAI's form, as chat templates read them; missing `parameters` become an empty object.

    Raises:
        ValueError: they are no tools, or two have one name.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise ValueError(f"tools={as_json(tools)}; expected a list of {EXPECTED}")
    checked = [_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    names = [name_of(tool) for tool in checked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tools has two that are called {twice[0]!r}; give each a name of its own")
    return checked


def check_tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """Returns the choice in OpenAI's form: a word, or the name of one of the tools. Raises ValueError."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    named = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = named.get("name") if isinstance(named, Mapping) else None
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
    """Returns the schema of an answer that calls one of the tools, in a model's format; None if none is required.

    Formats that list calls may list several, if `parallel` and not one function is named; others have one call.

    Raises:
        ValueError: the format has arguments that are not in JSON.
    """
    if choice.mode != "required":
        return None
    if format.argument is not None:
        raise ValueError(
            f"an answer cannot be held to a call that is written as {format.name} does, without JSON; give tool_choice "
            '"auto", and no form of the answer'
        )
    calls = [
        _schema_of(tool, format, f"tools[{i}]") for i, tool in enumerate(tools) if choice.name in (None, name_of(tool))
    ]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls, PLACE_KEYWORD: "tools"}
    if format.listed:
        max_items = {} if parallel and choice.name is None else {"maxItems": 1}
        call = {"type": "array", "items": call, "minItems": 1, **max_items, PLACE_KEYWORD: call[PLACE_KEYWORD]}
    if not format.head and not format.bare:
        call = call | {BETWEEN: [format.begin, format.end]}
    return call


def call_options(tools: Tools, format: ToolFormat) -> dict[str, Any]:
    """Returns the options of structured output that hold an answer to a call; empty if no call is required."""
    schema = call_schema(tools.tools, tools.choice, format, parallel=tools.parallel)
    return {} if schema is None else {"json_schema": schema}


def name_of(tool: Tool) -> str:
    """Returns the name of a tool's function."""
    return tool["function"]["name"]


def _tool(where: str, tool: Any) -> Tool:
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
    described = {} if description is None else {"description": description}
    empty = {"type": "object", "properties": {}}
    named = {"name": function["name"], **described, "parameters": dict(empty if parameters is None else parameters)}
    return {"type": "function", "function": named}


def _schema_of(tool: Tool, format: ToolFormat, place: str) -> dict[str, Any]:
    """Returns the schema of a call; that of its parameters is one of its own, within which its references lead."""
    of_call = {PLACE_KEYWORD: f"{place}.function.parameters"}  # an error about all of it is most likely about them
    parameters = {"type": "object"} | tool["function"]["parameters"] | of_call
    named = ("properties", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    if not any(parameters.get(name) for name in named):
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
        **of_call,
    }
