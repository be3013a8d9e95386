"""Reasoning split off answers: whole, character by character, cut, and where the prompt has begun it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speller import make_tokenizer

from eagle_jax.chat.harmony import MARKS, HarmonyReader
from eagle_jax.chat.reasoning import (
    FORMATS,
    NAMES,
    PieceReader,
    ReasoningPiece,
    ReasoningReader,
    reasoning_field_of,
    reasoning_format_for,
)
from eagle_jax.chat.tool_formats import ToolCall

THINK, SEED, HUNYUAN = (FORMATS[name] for name in ("think", "seed-oss", "hunyuan"))
CASES = [
    (THINK, False, "<think>\nHm, 7?\n</think>\n\nIt is 7.\n", "Hm, 7?", "It is 7.\n"),
    (THINK, False, "\n<think>\n\n</think>\n\nIt is 7.", "", "It is 7."),
    (THINK, False, "It is <think>7</think>.", "", "It is <think>7</think>."),
    (THINK, False, " \n It is 7.", "", " \n It is 7."),
    (THINK, False, "<thin", "", "<thin"),
    (THINK, False, "<think>Hm, a </thin", "Hm, a </thin", ""),
    (THINK, False, "<think>a</think>", "a", ""),
    (THINK, False, "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
    (THINK, False, "", "", ""),
    (THINK, True, "Hm,\n\n 7?\n</think>\n\nIt is 7.", "Hm,\n\n 7?", "It is 7."),
    (THINK, True, "Hm, 7? It", "Hm, 7? It", ""),
    (THINK, True, "</think>7", "", "7"),
    (SEED, False, "<seed:think>a</seed:think>b", "a", "b"),
    (FORMATS["mistral"], False, "[THINK]a[/THINK]b", "a", "b"),
    (FORMATS["gemma4"], False, "<|channel>thought\na\n<channel|>b", "a", "b"),
    (HUNYUAN, False, "<think>\na\n</think>\n<answer>\nb\nc\n</answer>", "a", "b\nc"),
    (HUNYUAN, True, "a\n</think>\n<answer>b", "a", "b"),
    (HUNYUAN, False, "<think>a</think>\nb </answer>", "a", "b </answer>"),
    (FORMATS["response"], False, "<think>a</think>\n<response>b</response>\n", "a", "b"),
    (HUNYUAN, False, "<think>a</think><answer>\nb\n</answer> more\n", "a", "b\n</answer> more"),
    (FORMATS["response"], True, "</think><response>x = '</response>' ok</response>", "", "x = '</response>' ok"),
]
HARMONY = [
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is <7>.<|return|>",
        "Hm.",
        "It is <7>.",
        [],
    ),
    ("<|channel|>final<|message|>7", "", "7", []),
    ("<|channel|>analysis<|message|>Hm, cut", "Hm, cut", "", []),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.look <|constrain|>json<|message|>{"at": "sea"}<|call|>',
        "a\n\nb",
        "I look.",
        [ToolCall("look", '{"at": "sea"}')],
    ),
    (
        " to=functions.look<|channel|>commentary json<|message|>{}<|end|><|start|>assistant to=functions.look"
        '<|channel|>commentary<|message|>{"at": 1}',
        "",
        "",
        [ToolCall("look", "{}"), ToolCall("look", '{"at": 1}')],
    ),
    ("<|channel|>commentary to=functions.look<|message|>{broken<|call|>", "", "to=functions.look {broken", []),
    ("<|channel|>commentary to=functions.shout<|message|>{}<|call|>", "", "to=functions.shout {}", []),
    ("<|channel|>commentary to=functions.look<|message|>[1]<|call|>", "", "to=functions.look [1]", []),
    ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", "1 + 1", "", []),
    ("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", "", "a\n\nb", []),
    ("No channel at all", "", "No channel at all", []),
    ("<|channel|>ana", "", "", []),
    ("<|channel|>commentary to=functions.look <|constrain|>js", "", "", []),
    ("<|channel|>final<|message|>a<|end|><|start|>assis", "", "a", []),
    ("", "", "", []),
    ("Hello<|end|>", "", "Hello", []),
    ("Hello<|channel|>final<|message|>you<|return|>", "", "Hello\n\nyou", []),
    ("<|channel|>final Hello user<|return|>", "", "Hello user", []),
    ("<|channel|>analysis Hm<|end|>a", "Hm", "a", []),
    ("<|channel|>analysis<|message|>Hm.<|end|>Paris is it.<|return|>", "Hm.", "Paris is it.", []),
    ("<|channel|>final<|message|>a<|end|>b<|start|>assistant<|channel|>final<|message|>c", "", "a\n\nb\n\nc", []),
    ("<|start|>functions.look to=assistant<|channel|>commentary<|message|>7<|end|>", "", "7", []),
    (
        '<|channel|>commentary to=functions.look<|message|>{"a": 1e999}<|call|>',
        "",
        'to=functions.look {"a": 1e999}',
        [],
    ),
]


def read(reader: PieceReader, pieces: list[str]) -> tuple[str, str, list[ToolCall]]:
    parts = [one for piece in pieces for one in reader.add(piece)] + reader.end()
    assert all(one for one in parts)
    thoughts = "".join(one.text for one in parts if isinstance(one, ReasoningPiece))
    calls = [one for one in parts if isinstance(one, ToolCall)]
    return thoughts, "".join(one for one in parts if isinstance(one, str)), calls


@pytest.mark.parametrize("format, is_open, text, thought, content", CASES)
def test_whole_and_character_by_character(format, is_open, text, thought, content):
    for pieces in ([text], [*text]):
        assert read(ReasoningReader(format, is_open), pieces) == (thought, content, [])


@pytest.mark.parametrize("text, thought, content, calls", HARMONY)
def test_channels_whole_and_character_by_character(text, thought, content, calls):
    for pieces in ([text], [*text]):
        assert read(HarmonyReader({"look": {}}), pieces) == (thought, content, calls)


@given(st.lists(st.sampled_from([*MARKS, "analysis", "final", " to=functions.look", "{}", "a <", "\n"]), max_size=12))
def test_any_order_of_channels_is_read_in_any_pieces(parts):
    text = "".join(parts)
    whole = read(HarmonyReader({"look": {}}), [text])
    assert whole == read(HarmonyReader({"look": {}}), [*text]) == read(HarmonyReader({"look": {}}), parts)


PARTS = ["<think>", "</think>", "<answer>", "</answer>", "</ans", " ", "\n", "a"]


@given(
    st.sampled_from([THINK, HUNYUAN]),
    st.booleans(),
    st.text("</think>ansr \n", max_size=30) | st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
)
def test_any_text_is_read_in_any_pieces(format, is_open, text):
    assert read(ReasoningReader(format, is_open), [text]) == read(ReasoningReader(format, is_open), [*text])


def test_one_call_where_more_are_not_wanted():
    text = "<|channel|>commentary to=functions.look<|message|>{}<|end|>" * 2
    assert len(read(HarmonyReader({"look": {}}), [text])[2]) == 2
    assert len(read(HarmonyReader({"look": {}}, parallel=False), [text])[2]) == 1


def test_a_message_that_the_prompt_has_begun():
    reader = HarmonyReader({}, before="<|start|>assistant<|channel|>final<|message|>It is")
    assert read(reader, [" 7.<|return|>"]) == ("", " 7.", [])


def test_text_without_a_channel_comes_at_once():
    reader = HarmonyReader({})
    assert reader.add("Hel") + reader.add("lo <") + reader.add("b>") == ["Hel", "lo ", "<b>"]


def test_reasoning_that_is_not_told_apart_is_text():
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>"
    assert read(HarmonyReader({}, separate=False), [*text]) == ("", "Hm.\n\n7", [])


def test_text_comes_at_once():
    reader = ReasoningReader(THINK, is_open=True)
    assert reader.is_thinking
    assert reader.add("Hm, a <") == [ReasoningPiece("Hm, a")]
    assert reader.add("b>") == [ReasoningPiece(" <b>")] and reader.is_thinking
    assert reader.add("\n</think>\n\n") == [] and not reader.is_thinking
    assert reader.add("It") == ["It"]


TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}",
    "gemma4": "<|channel>thought\n{{ m['reasoning'] }}<channel|>",
    "seed-oss": "{% set begin = '<seed:think>' %}{{ message.reasoning_content }}",
    "mistral": "[THINK]{{ block['thinking'] }}[/THINK]",
    "hunyuan": "<think></think><answer></answer>",
    "hunyuan-a13b": "{{ message.content + '<|extra_0|>' }}<think></think>",
    "minimax-m2": "{% set begin = '<minimax:tool_call>' %}</think><response>{{ message.content }}</response>",
    "response": "<think></think><response></response>",
    "granite": "thoughts after 'Here is my thought process:' and the response after 'Here is my response:'",
    "think": "{{ message.content.split('</think>')[-1] }}{{ message.reasoning_content }}",
}


def test_the_format_is_the_templates_or_the_vocabularys():
    assert [*TEMPLATES] == [*FORMATS] == [*NAMES[:-1]]
    tokenizer = make_tokenizer()
    assert reasoning_format_for(tokenizer) is None
    for name, template in TEMPLATES.items():
        tokenizer.chat_template = template
        assert reasoning_format_for(tokenizer) == FORMATS[name]
        assert reasoning_format_for(tokenizer, "none") is None
        assert reasoning_format_for(tokenizer, "seed-oss") == SEED
    tokenizer.chat_template = {"default": "", "think": TEMPLATES["think"]}
    assert reasoning_format_for(tokenizer) == THINK
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.add_tokens(["<think>", "</think>"])
    assert reasoning_format_for(tokenizer) == THINK


def test_the_name_of_earlier_reasoning_is_the_templates():
    names = [reasoning_field_of(template) for template in TEMPLATES.values()]
    assert names == ["thinking", "reasoning", "reasoning_content", "thinking", *[None] * 5, "reasoning_content"]
    assert reasoning_field_of("{% if enable_thinking %}reasoning_content{% endif %}") is None
