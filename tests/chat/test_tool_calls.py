"""Calls in answers: read whole or in any pieces, in each family's format, and what is none stays text."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_jax.chat import call_parser
from eagle_jax.chat.tool_calls import CallReader
from eagle_jax.chat.tool_formats import FORMATS, ToolCall, ToolFormat

HERMES, LLAMA3, MISTRAL = FORMATS["hermes"], FORMATS["llama3"], FORMATS["mistral"]
VALUES = {"s": {"type": "string"}, "n": {"type": "integer"}, "l": {"anyOf": [{"type": "array"}, {"type": "null"}]}}
FUNCTIONS = {"look": {}, "add": {"type": "object", "properties": VALUES}}
LOOK = ToolCall("look", '{"at": "a {wide} </tool_call> \\"sea\\""}')
ADD = ToolCall("add", '{"a": [1, {"b": 2}], "c": "é"}')
NONE = ToolCall("look", "{}")


def written(call: ToolCall, key: str = "arguments", **more) -> str:
    return json.dumps({"name": call.name, key: json.loads(call.arguments)}, ensure_ascii=False, **more)


def tagged(call: ToolCall, **more) -> str:
    return f"<tool_call>\n{written(call, **more)}\n</tool_call>"


L, A = written(LOOK, "parameters"), written(ADD, "parameters")
CASES: list[tuple[ToolFormat, str, str, list[ToolCall]]] = [
    (HERMES, "No calls at all.\n", "No calls at all.\n", []),
    (HERMES, "a < b <tool", "a < b <tool", []),
    (HERMES, "", "", []),
    (HERMES, " \n", " \n", []),
    (HERMES, tagged(LOOK), "", [LOOK]),
    (HERMES, f"\n{tagged(LOOK)}\n{tagged(ADD, indent=2)}\n", "", [LOOK, ADD]),
    (HERMES, f"Let me see.\n\n{tagged(LOOK)}\nand{tagged(ADD)}", "Let me see.\nand", [LOOK, ADD]),
    (HERMES, f"<tool_call>{written(ADD)}", "", [ADD]),
    (HERMES, f"<tool_call>{written(ADD)}\nSo be it.", "\nSo be it.", [ADD]),
    (HERMES, f"<tool_call>{written(ADD)} </tool", " </tool", [ADD]),
    (HERMES, f"<tool_call>{written(ADD)[:-2]}", f"<tool_call>{written(ADD)[:-2]}", []),
    (HERMES, "<tool_call>\n{'name': 'look'}\n</tool_call>", "<tool_call>\n{'name': 'look'}\n</tool_call>", []),
    (HERMES, '<tool_call>{"name": "shout"}</tool_call>', '<tool_call>{"name": "shout"}</tool_call>', []),
    (HERMES, '<tool_call>{"name": "look"}</tool_call>', "", [NONE]),
    (HERMES, '<tool_call>{"name": "look", "arguments": "{}"}</tool_call>', "", [NONE]),
    (HERMES, '<tool_call>{"name": "look", "arguments": 7}</tool_call>x', None, []),
    (HERMES, '<tool_call>{"name": "look", "arguments": {"a": NaN}}</tool_call>', None, []),
    (HERMES, '<tool_call>{"name": "look", "arguments": {"a": 1e999}}</tool_call>', None, []),
    (HERMES, "<tool_call>" + "[" * 5000 + "]" * 5000, None, []),
    (HERMES, f"<tool_call> no </tool_call> {tagged(LOOK)}", "<tool_call> no </tool_call>", [LOOK]),
    (HERMES, written(LOOK), written(LOOK), []),
    (LLAMA3, L, "", [LOOK]),
    (LLAMA3, f"{L}{' ;' * 9}{A}", "", [LOOK, ADD]),
    (LLAMA3, f"{L} ;{' ' * 9}so", " ;         so", [LOOK]),
    (LLAMA3, f" \n{L}; {A}\n", "", [LOOK, ADD]),
    (LLAMA3, f"<|python_tag|>{L}", "", [LOOK]),
    (LLAMA3, f"<|python_tag|>{L};{A}", "", [LOOK, ADD]),
    (LLAMA3, f"I say {L}", f"I say {L}", []),
    (LLAMA3, f"I say <|python_tag|>{L}", "I say", [LOOK]),
    (LLAMA3, '{"a": 1} is JSON', '{"a": 1} is JSON', []),
    (LLAMA3, L[:-1], L[:-1], []),
    (LLAMA3, f"{L} There.", " There.", [LOOK]),
    (LLAMA3, written(LOOK), "", [LOOK]),
    (MISTRAL, f"[TOOL_CALLS] [{written(LOOK)}, {written(ADD)}]", "", [LOOK, ADD]),
    (MISTRAL, f"[TOOL_CALLS]{written(ADD)}", "", [ADD]),
    (MISTRAL, f"[TOOL_CALLS] [{written(LOOK)}, 7]", None, []),
    (MISTRAL, f"[1] Yes [TOOL_CALLS][{written(LOOK)}]", "[1] Yes", [LOOK]),
    (MISTRAL, "[TOOL_CALLS", "[TOOL_CALLS", []),
]


def read(format: ToolFormat, pieces: list[str], **more) -> tuple[str, list[ToolCall]]:
    reader = CallReader(format, FUNCTIONS, **more)
    parts = [one for piece in pieces for one in reader.add(piece)] + reader.end()
    calls = [one for one in parts if isinstance(one, ToolCall)]
    assert calls == reader.calls
    return "".join(one for one in parts if isinstance(one, str)), calls


@pytest.mark.parametrize("format, text, content, calls", CASES)
def test_whole_and_character_by_character(format, text, content, calls):
    expected = (text if content is None else content, calls)
    assert read(format, [text]) == read(format, [*text]) == expected


# The same two calls as each family writes them: text before, a call, another one.
ARGUMENTS = {"s": "7", "n": 7, "l": [1, "a\nb"]}
ADDED, SEEN = ToolCall("add", json.dumps(ARGUMENTS)), ToolCall("look", "{}")
J = json.dumps(ARGUMENTS)
WRITTEN = {
    "mistral-args": f"[TOOL_CALLS]add[ARGS]{J}[TOOL_CALLS]look[ARGS]{{}}",
    "deepseek-v3": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{J}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek-v3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{J}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi-k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        f"{J}<|tool_call_end|><|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="s">7</parameter>\n'
        '<parameter name="n">7</parameter>\n'
        '<parameter name="l">[1, "a\\nb"]</parameter>\n</invoke>\n<invoke name="look">\n</invoke>\n</minimax:tool_call>'
    ),
    "seed-oss": (
        "<seed:tool_call>\n<function=add>\n<parameter=s>7</parameter>\n<parameter=n>7</parameter>\n<parameter=l>"
        '[1, "a\\nb"]</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=look>\n</function>\n</seed:tool_call>"
    ),
    "qwen3-coder": (
        "<tool_call>\n<function=add>\n<parameter=s>\n7\n</parameter>\n<parameter=n>\n7\n</parameter>\n<parameter=l>\n"
        '[1, "a\\nb"]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=look>\n</function>\n</tool_call>"
    ),
    "glm4": (
        "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>7</arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n"
        '<arg_key>l</arg_key>\n<arg_value>[1, "a\\nb"]</arg_value>\n</tool_call>\n<tool_call>look\n</tool_call>'
    ),
    "hunyuan": f'<tool_calls>[{{"name": "add", "arguments": {J}}}, {{"name": "look", "arguments": {{}}}}]</tool_calls>',
    "granite": f'<|tool_call|>[{{"name": "add", "arguments": {J}}}, {{"name": "look", "arguments": {{}}}}]',
}


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_of_families(name):
    text = f"So be it.\n\n{WRITTEN[name]}\n"
    content, calls = read(FORMATS[name], [text])
    assert read(FORMATS[name], [*text]) == (content, calls)
    assert content == "So be it." and [(call.name, call.arguments) for call in calls] == [
        (call.name, call.arguments) for call in (ADDED, SEEN)
    ]
    assert read(FORMATS[name], [text], parallel=False) == (content, calls[:1])


@pytest.mark.matrix
@pytest.mark.parametrize("name", WRITTEN)
def test_families_calls_that_are_cut_or_of_no_function(name):
    """Nothing is lost: what is not read as calls is the text as it is."""
    for text in (WRITTEN[name].replace("add", "shout").replace("look", "say"), "<tool_call> [TOOL_CALLS", "<"):
        content, calls = read(FORMATS[name], [text])
        assert (content.strip(), calls) == (text, []) == (read(FORMATS[name], [*text])[0].strip(), [])
    for cut in range(len(WRITTEN[name])):
        text = WRITTEN[name][:cut]
        content, calls = read(FORMATS[name], [text])
        assert read(FORMATS[name], [*text]) == (content, calls)
        plain = [(call.name, call.arguments) for call in calls]
        assert plain == [("add", J), ("look", "{}")][: len(calls)]
        if not calls:
            assert content == text


@given(st.sampled_from([*WRITTEN]), st.lists(st.integers(0, 300), max_size=6))
def test_calls_of_families_in_any_pieces(name, cuts):
    text = WRITTEN[name]
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:])]
    assert read(FORMATS[name], pieces) == read(FORMATS[name], [text])


@pytest.mark.parametrize(
    "schema, text, value",
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "", ""),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", 7),
        ({"enum": ["7", "8"]}, "7", "7"),
        ({"const": 7}, "7", 7),
        ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "number"}, "-1e999", "-1e999"),
        (functools.reduce(lambda inner, _: {"anyOf": [inner]}, range(2000), {"type": "string"}), "7", 7),
        ({}, '{"a": 1}', {"a": 1}),
        ({"anyOf": 7, "type": 8}, "sea", "sea"),
    ],
)
def test_values_that_are_written_without_quotes(schema, text, value):
    functions = {"f": {"properties": {"a": schema}}}
    reader = CallReader(FORMATS["glm4"], functions)
    reader.add(f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>")
    reader.end()
    (call,) = reader.calls
    assert json.loads(call.arguments) == {"a": value} and type(json.loads(call.arguments)["a"]) is type(value)


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=6))
def test_in_any_pieces(case, cuts):
    format, text, content, calls = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:])]
    assert read(format, pieces) == (text if content is None else content, calls)


END, KIMI = "<|tool_calls_section_end|>", WRITTEN["kimi-k2"]


def test_calls_after_what_is_none():
    """The mark that ends calls, where none were; a name and an index that are too long."""
    for text in (END, KIMI.replace("add", "a" * 70).replace("look", "say"), KIMI.replace(":", ":" + "0" * 20)):
        content, calls = read(FORMATS["kimi-k2"], [f"{text} {KIMI}"])
        assert (content, [call.name for call in calls]) == (text, ["add", "look"])
        assert read(FORMATS["kimi-k2"], [*f"{text} {KIMI}"]) == (content, calls)
    assert read(FORMATS["kimi-k2"], [KIMI + END * 2000])[0] == ""


def test_what_is_too_long_for_a_name_or_an_index_is_text_at_once():
    begin = "<|tool_call_begin|>functions."
    for text in (begin + "a" * 65, begin + "look:" + "0" * 10):
        assert "".join(map(str, CallReader(FORMATS["kimi-k2"], FUNCTIONS).add(text))) == text


@pytest.mark.parametrize("name", ["qwen3-coder", "seed-oss"])
def test_a_function_without_the_mark_before_it(name):
    begin, text = FORMATS[name].begin, f"Yes.\n{WRITTEN[name]}"
    for some in (text.replace(begin, "", 1), text.replace(begin, "")):
        content, calls = read(FORMATS[name], [some])
        assert (content, [call.name for call in calls]) == ("Yes.", ["add", "look"])
        assert read(FORMATS[name], [*some]) == (content, calls)


def test_text_comes_at_once_and_calls_when_they_are_complete():
    reader = CallReader(HERMES, FUNCTIONS)
    assert reader.add("Let me") == ["Let me"]
    assert reader.add(" see. <tool") == [" see."]
    assert reader.add("box> ") == [" <toolbox>"]
    assert reader.add(tagged(LOOK)[:-1]) == []
    assert reader.add(">") == [LOOK]


def test_a_long_call_is_parsed_once(monkeypatch):
    parsed, parse = [], json.loads
    monkeypatch.setattr(call_parser.json, "loads", lambda text, **more: parsed.append(text) or parse(text, **more))
    long = ToolCall("add", json.dumps({"text": 'one "two" ' * 50}))
    texts = {HERMES: f"<tool_call>{written(long)} \n</tool_call>", LLAMA3: written(long, "parameters")}
    parsed.clear()
    for format, text in texts.items():
        assert read(format, [*text]) == ("", [long])
    assert len(parsed) == 2


def test_one_call_where_more_are_not_wanted():
    assert read(HERMES, [tagged(LOOK) + tagged(ADD)], parallel=False) == ("", [LOOK])
    assert read(MISTRAL, [f"[TOOL_CALLS][{written(LOOK)}, {written(ADD)}]"], parallel=False) == ("", [LOOK])


@given(
    st.dictionaries(st.text('a"\\{}[]\n', max_size=6), st.text('a"\\{}[]\n</tool_c', max_size=12)), st.integers(0, 99)
)
def test_any_text_may_be_an_argument(arguments, cut):
    call = ToolCall("look", json.dumps(arguments, ensure_ascii=False))
    for format, text in ((HERMES, tagged(call)), (LLAMA3, written(call)), (MISTRAL, f"[TOOL_CALLS][{written(call)}]")):
        assert read(format, [text[:cut], text[cut:]]) == ("", [call])
