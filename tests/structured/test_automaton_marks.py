"""Forms after reasoning and between marks, as automata over bytes."""

import json

import pytest

from eagle_jax.chat.harmony import ANALYSIS, FINAL
from eagle_jax.chat.tool_formats import FORMATS
from eagle_jax.chat.tools import ToolChoice, call_schema, check_tools
from eagle_jax.structured.automaton_marks import after_reasoning, surround
from eagle_jax.structured.forms import Form
from eagle_jax.structured.json_schema import schema_automaton
from eagle_jax.text.token_bytes import SPECIAL

YES = Form("choices", ("yes", "no"))
AT = {"type": "object", "properties": {"at": {"enum": ["sea"]}}, "required": ["at"]}
TOOLS = check_tools([{"type": "function", "function": {"name": name, "parameters": AT}} for name in ("look", "go")])


def test_a_form_after_reasoning_that_may_come():
    made = after_reasoning(YES.automaton(), "<think>", "</think>", "choices")
    for text in ("yes", "<think>\nHm </thin </think>yes", "<think></think>no", "\n<think>a</think>\n\nno"):
        assert made.accepts(text.encode()), text
    assert made.accepts(SPECIAL + b"<think>Hm" + SPECIAL + b"</think>yes")
    assert made.accepts(b"<think><</</think</think>yes")
    for text in (
        "<think>yes",
        "<think>a</think>",
        "a</think>yes",
        "<think>a</think>maybe",
        "<think>a</think>\n\n\nyes",
    ):
        assert not made.accepts(text.encode()), text
    assert not made.accepts(b"<think>" + SPECIAL + b"<end></think>yes"), "no other special token"


def test_a_form_after_reasoning_that_the_prompt_has_begun():
    made = after_reasoning(YES.automaton(), "", "</think>", "choices")
    assert made.accepts("é 7?\n</think>\n\nyes".encode()) and made.accepts(b"</think>yes") and not made.accepts(b"yes")


def test_texts_around_a_form():
    made = surround(YES.automaton(), "<a>\nto [B] ", "</a>", "choices")
    assert made.accepts(b"<a>\nto [B] yes</a>")
    assert made.accepts(SPECIAL + b"<a>\nto " + SPECIAL + b"[B] no" + SPECIAL + b"</a>")
    assert not made.accepts(b"yes") and not made.accepts(b"<a>to [B] yes</a>")


def test_channels():
    made = Form("choices", ("yes",), between=FINAL, reasoning=ANALYSIS).automaton()
    final = "<|channel|>final<|message|>yes"
    assert made.accepts(final.encode())
    thought = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{final}"
    assert made.accepts(thought.encode()) and not made.accepts(b"yes")
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    tokens = thought.encode()
    for mark in marks:
        tokens = tokens.replace(mark.encode(), SPECIAL + mark.encode())
    assert made.accepts(tokens)


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.head and one.argument is None])
def test_a_call_by_its_name(name):
    format = FORMATS[name]
    made = schema_automaton(json.dumps(call_schema(TOOLS, ToolChoice("required"), format)))
    for tool in ("look", "go", "shout"):
        head = format.head.replace("{name}", tool).replace("{index}", "0")
        before, after = f"{format.section[0]}{format.begin}{head}", f"{format.tail}{format.end}{format.section[1]}"
        assert made.accepts(f'{before}{{"at":"sea"}}{after}'.encode()) == (tool != "shout")
        assert not made.accepts(f'{before}{{"at":"sky"}}{after}'.encode())
    assert not made.accepts(b'{"at":"sea"}')


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.argument is not None])
def test_calls_without_json_are_not_held_to_a_form(name):
    with pytest.raises(ValueError, match=f"tool calls in the format {name} are not JSON, so .*; give tool_choice"):
        call_schema(TOOLS, ToolChoice("required"), FORMATS[name])
    assert call_schema(TOOLS, ToolChoice("auto"), FORMATS[name]) is None
