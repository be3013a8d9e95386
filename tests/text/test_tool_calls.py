"""Calls in answers: read whole or in any pieces, in each family's format, and what is none stays text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_jax.text import tool_calls
from eagle_jax.text.tool_calls import (
    FORMATS,
    CallReader,
    ToolCall,
    ToolFormat,
    call_id,
    format_of,
    knows_tools,
    template_of,
)

HERMES, LLAMA3, MISTRAL = FORMATS["hermes"], FORMATS["llama3"], FORMATS["mistral"]
NAMES = ("look", "add")
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
    (HERMES, "<tool_call>" + "[" * 5000 + "]" * 5000, None, []),
    (HERMES, f"<tool_call> no </tool_call> {tagged(LOOK)}", "<tool_call> no </tool_call>", [LOOK]),
    (HERMES, written(LOOK), written(LOOK), []),
    (LLAMA3, L, "", [LOOK]),
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
    reader = CallReader(format, NAMES, **more)
    told = [one for piece in pieces for one in reader.add(piece)] + reader.end()
    calls = [one for one in told if isinstance(one, ToolCall)]
    assert calls == reader.calls
    return "".join(one for one in told if isinstance(one, str)), calls


@pytest.mark.parametrize("format, text, content, calls", CASES)
def test_whole_and_character_by_character(format, text, content, calls):
    expected = (text if content is None else content, calls)
    assert read(format, [text]) == read(format, [*text]) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=6))
def test_in_any_pieces(case, cuts):
    format, text, content, calls = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:])]
    assert read(format, pieces) == (text if content is None else content, calls)


def test_text_comes_at_once_and_calls_when_they_are_complete():
    reader = CallReader(HERMES, NAMES)
    assert reader.add("Let me") == ["Let me"]
    assert reader.add(" see. <tool") == [" see."]
    assert reader.add("box> ") == [" <toolbox>"]
    assert reader.add(tagged(LOOK)[:-1]) == []
    assert reader.add(">") == [LOOK]


def test_a_long_call_is_parsed_once(monkeypatch):
    parsed, parse = [], tool_calls._calls_in
    monkeypatch.setattr(tool_calls, "_calls_in", lambda text, *more: parsed.append(text) or parse(text, *more))
    long = ToolCall("add", json.dumps({"text": 'one "two" ' * 50}))
    for format, text in ((HERMES, f"<tool_call>{written(long)} \n</tool_call>"), (LLAMA3, written(long, "parameters"))):
        assert read(format, [*text]) == ("", [long])
    assert len(parsed) == 2


def test_one_call_where_more_are_not_wanted():
    assert read(HERMES, [tagged(LOOK) + tagged(ADD)], parallel=False) == ("", [LOOK])
    assert read(MISTRAL, [f"[TOOL_CALLS][{written(LOOK)}, {written(ADD)}]"], parallel=False) == ("", [LOOK])


TEMPLATES = {
    "hermes": "{% if tools %}<tools>...</tools> within <tool_call></tool_call> tags {% endif %}",
    "llama3": '{% if tools is not none %}{"name": function name, "parameters": dictionary}. {% endif %}',
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS] [",
}


def test_the_format_is_the_templates():
    for name, template in TEMPLATES.items():
        assert format_of(template) == FORMATS[name] and knows_tools(template)
    for template in (
        '{"parameters": {}}',
        "{{ messages }}",
        "<tool_call>\n<function=look>",
        "[TOOL_CALLS]look[ARGS]{}",
        "the tooling",
    ):
        assert format_of(template) is None and not knows_tools(template)


def test_the_template_for_tools():
    class Tokenizer:
        chat_template = None

    assert template_of(None) == template_of(Tokenizer()) == ""
    for templates, expected in (
        ("a", "a"),
        ({"default": "b"}, "b"),
        ({"default": "b", "tool_use": "c"}, "c"),
        ({}, ""),
    ):
        Tokenizer.chat_template = templates
        assert template_of(Tokenizer()) == expected


def test_ids():
    assert call_id(HERMES, "a", 0) == call_id(HERMES, "a", 0) != call_id(HERMES, "a", 1)
    assert call_id(HERMES, "a", 0).startswith("call_")
    assert len(call_id(MISTRAL, "a", 0)) == 9 and call_id(MISTRAL, "a", 0).isalnum()


@given(
    st.dictionaries(st.text('a"\\{}[]\n', max_size=6), st.text('a"\\{}[]\n</tool_c', max_size=12)), st.integers(0, 99)
)
def test_any_text_may_be_an_argument(arguments, cut):
    call = ToolCall("look", json.dumps(arguments, ensure_ascii=False))
    for format, text in ((HERMES, tagged(call)), (LLAMA3, written(call)), (MISTRAL, f"[TOOL_CALLS][{written(call)}]")):
        assert read(format, [text[:cut], text[cut:]]) == ("", [call])
