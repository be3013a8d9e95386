"""What requests say of the functions that may be called, and the form of answers that have to call one."""

import json

import pytest

from eagle_jax.chat.tool_formats import FORMATS
from eagle_jax.chat.tools import ToolChoice, call_schema, check_tool_choice, check_tools
from eagle_jax.structured.json_schema import BETWEEN, PLACE_KEYWORD, schema_automaton

PARAMETERS = {"type": "object", "properties": {"at": {"$ref": "#/$defs/place"}}, "$defs": {"place": {"type": "string"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "See.", "parameters": PARAMETERS}}
WAIT = {"type": "function", "function": {"name": "wait"}}


def test_tools_as_templates_read_them():
    strict = LOOK | {"function": LOOK["function"] | {"strict": True}}
    look, wait = check_tools([strict, WAIT])
    assert look == LOOK and wait["function"] == {"name": "wait", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    "tools, message",
    [
        ({}, "tools={}; expected a list of"),
        ("look", 'tools="look"; expected a list of'),
        ([7], r"tools\[0\]=7; expected {\"type\": \"function\""),
        ([{"type": "function"}], r"tools\[0\]={\"type\": \"function\"}; expected"),
        ([{"type": "web_search", "function": {"name": "a"}}], r"tools\[0\]=.*; expected"),
        ([{"type": "function", "function": {"name": "a b"}}], r'name="a b"; expected 1 to 64 letters'),
        ([{"type": "function", "function": {"name": "a", "mood": 1}}], r'function has "mood"; expected name, desc'),
        ([{"type": "function", "function": {"name": "a", "description": 1}}], "description=1; expected text"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": []}}],
            r"parameters=\[\]; expected a JSON schema",
        ),
        ([WAIT, WAIT], "tools has two entries named 'wait'; give each its own name"),
    ],
)
def test_tools_that_are_none(tools, message):
    with pytest.raises(ValueError, match=message):
        check_tools(tools)


def test_choices():
    named = {"type": "function", "function": {"name": "wait"}}
    tools = check_tools([LOOK, WAIT])
    assert check_tool_choice(None, []) == check_tool_choice("none", tools) == ToolChoice("none")
    assert check_tool_choice(None, tools) == check_tool_choice("auto", tools) == ToolChoice("auto")
    assert check_tool_choice("required", tools) == ToolChoice("required")
    assert check_tool_choice(named, tools) == ToolChoice("required", "wait")
    for choice, given, message in (
        ("always", tools, 'tool_choice="always"; expected "auto", "none", "required" or'),
        (7, tools, "tool_choice=7; expected"),
        ({"type": "allowed_tools"}, tools, "tool_choice=.*; expected"),
        ("required", [], 'tool_choice="required" without tools; give tools'),
        ({"type": "function", "function": {"name": "shout"}}, tools, 'names "shout"; expected one of look, wait'),
    ):
        with pytest.raises(ValueError, match=message):
            check_tool_choice(choice, given)


def call(name: str, parameters: dict, key: str = "arguments") -> dict:
    properties = {"name": {"const": name}, key: parameters}
    return {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False} | {
        PLACE_KEYWORD: parameters[PLACE_KEYWORD]
    }


def parameters_at(number: int, **stated) -> dict:
    """Parameters as a schema of their own, which says where it stands."""
    return stated | {PLACE_KEYWORD: f"tools[{number}].function.parameters"}


LOOKED = parameters_at(0, **PARAMETERS)
WAITED = parameters_at(1, type="object", properties={}, additionalProperties=False)


def test_the_form_of_answers_that_have_to_call():
    tools, any_of_them, look = check_tools([LOOK, WAIT]), ToolChoice("required"), ToolChoice("required", "look")
    hermes, llama3, mistral = (FORMATS[name] for name in ("hermes", "llama3", "mistral"))
    assert call_schema(tools, ToolChoice("auto"), hermes) is None is call_schema(tools, ToolChoice("none"), hermes)
    assert call_schema(tools, look, hermes) == call("look", LOOKED) | {BETWEEN: ["<tool_call>\n", "\n</tool_call>"]}
    both = {"anyOf": [call("look", LOOKED, "parameters"), call("wait", WAITED, "parameters")], PLACE_KEYWORD: "tools"}
    assert call_schema(tools, any_of_them, llama3) == both
    either = {"anyOf": [call("look", LOOKED), call("wait", WAITED)], PLACE_KEYWORD: "tools"}
    listed = {"type": "array", "items": either, "minItems": 1, PLACE_KEYWORD: "tools", BETWEEN: ["[TOOL_CALLS]", ""]}
    assert call_schema(tools, any_of_them, mistral) == listed
    assert call_schema(tools, any_of_them, mistral, parallel=False) == listed | {"maxItems": 1}
    assert call_schema(tools, look, mistral)["maxItems"] == 1
    assert tools == check_tools([LOOK, WAIT]), "nothing is changed"


def test_each_function_has_definitions_of_its_own_and_errors_name_its_place():
    parameters = {"properties": {"at": {"$ref": "#/$defs/place"}}, "$defs": {"place": {"type": "integer"}}}
    go = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    form = call_schema(check_tools([LOOK, go]), ToolChoice("required"), FORMATS["llama3"])
    automaton = schema_automaton(json.dumps(form))
    assert automaton.accepts(b'{"name":"look","parameters":{"at":"x"}}')
    assert automaton.accepts(b'{"name":"go","parameters":{"at":3}}')
    assert not automaton.accepts(b'{"name":"go","parameters":{"at":"x"}}')
    parameters["properties"]["age"] = {"not": {"type": "null"}}
    form = call_schema(check_tools([LOOK, go]), ToolChoice("required"), FORMATS["llama3"])
    with pytest.raises(ValueError, match=r"^tools\[1\]\.function\.parameters\.properties\.age\.not is not supported"):
        schema_automaton(json.dumps(form))


@pytest.mark.matrix
@pytest.mark.parametrize("format", ["hermes", "mistral"])
def test_calls_that_are_too_large_are_named_by_their_place(format):
    dates = {"type": "array", "minItems": 1000, "items": {"type": "string", "format": "date-time"}}
    plan = {"type": "function", "function": {"name": "plan", "parameters": {"properties": {"days": dates}}}}
    for tools, choice, place in (
        ([plan], ToolChoice("required"), r"tools\[0\]\.function\.parameters"),
        ([LOOK, plan], ToolChoice("required", "plan"), r"tools\[1\]\.function\.parameters"),
        ([LOOK, plan], ToolChoice("required"), "tools"),
    ):
        form = call_schema(check_tools(tools), choice, FORMATS[format])
        with pytest.raises(ValueError, match=f"^the automaton of {place} is too large"):
            schema_automaton(json.dumps(form))
