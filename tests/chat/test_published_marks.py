"""Calls and reasoning as published models write them, by what their public chat templates and vLLM's parsers have.

Templates stand here as the marks that tell their format, answers as these models lay them out.
"""

from typing import NamedTuple

import pytest

from eagle_jax.chat.reasoning import FORMATS as REASONING
from eagle_jax.chat.reasoning import ReasoningPiece, ReasoningReader
from eagle_jax.chat.tool_calls import CallReader
from eagle_jax.chat.tool_formats import FORMATS, ToolCall, format_of


class Published(NamedTuple):
    """What a model's template has, and an answer with reasoning (if it has some) and a call of `look`."""

    template: str
    reasoning: str
    calls: str
    answer: str
    is_open: bool = False  # the template ends a prompt within the reasoning
    content: str = "So."


LISTED = '[{"name": "look", "arguments": {"at": "sea", "far": true}}]'
OBJECT = LISTED[1:-1]
MODELS = {
    "GLM-4.5": Published(
        "[gMASK]<sop>{% if tools %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n{% endif %}</think>",
        "think",
        "glm4",
        "\n<think>Hm.</think>\nSo.\n<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>sea</arg_value>\n"
        "<arg_key>far</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
    ),
    "GLM-4.7": Published(
        "[gMASK]<sop>{% if tools %}<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>{% endif %}</think>",
        "think",
        "glm4",
        "<think>Hm.</think>So.<tool_call>look<arg_key>at</arg_key><arg_value>sea</arg_value>"
        "<arg_key>far</arg_key><arg_value>true</arg_value></tool_call>",
    ),
    "DeepSeek-V3.1": Published(
        "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>{% endif %}"
        "<｜tool▁calls▁end｜></think>",
        "think",
        "deepseek-v3.1",
        'Hm.</think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "sea", "far": true}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        is_open=True,
    ),
    "MiniMax-M2": Published(
        "{% set begin = '<minimax:tool_call>' %}{% if tools %}{% endif %}<think></think>\n<response></response>",
        "minimax-m2",
        "minimax-m2",
        'Hm.\n</think>\n\nSo.\n<minimax:tool_call>\n<invoke name="look">\n<parameter name="at">sea</parameter>\n'
        '<parameter name="far">true</parameter>\n</invoke>\n</minimax:tool_call>',
        is_open=True,
    ),
    "Hunyuan-A13B": Published(
        "{% if tools %}<tool_calls>[{}]</tool_calls>{% endif %}<|extra_0|><think>\n\n</think>\n",
        "hunyuan-a13b",
        "hunyuan",
        f"<think>\nHm.\n</think>\n<answer>\nSo.\n<tool_calls>{LISTED}</tool_calls>\n</answer>",
    ),
    "ERNIE-4.5-Thinking": Published(
        "{% if tools %}<tool_call>\n{}\n</tool_call>{% endif %}</think>\n<response>\n</response>",
        "response",
        "hermes",
        f"Hm.\n</think>\n\n\n<tool_call>\n{OBJECT}\n</tool_call>\n",
        is_open=True,
        content="",
    ),
    "Granite-3.0": Published(
        "{% if tools %}respond with <|tool_call|>{% endif %}", "", "granite", f"So.<|tool_call|>{LISTED}"
    ),
    "Granite-3.1": Published(
        "{% if tools %}respond with <|tool_call|>{% endif %}", "", "granite", f"So.<tool_call>{LISTED}"
    ),
    "Granite-3.2": Published(
        "{% if tools %}<|tool_call|>{% endif %}'Here is my thought process:' and 'Here is my response:'",
        "granite",
        "granite",
        f"Here is my thought process: Hm.\n\nHere is my response:\nSo.\n<|tool_call|> {LISTED}",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_reasoning_text_and_a_call(name: str):
    """Whole, and character by character."""
    model = MODELS[name]
    assert format_of(model.template) is FORMATS[model.calls]
    found = next((one.name for one in REASONING.values() if all(mark in model.template for mark in one.marks)), "")
    assert found == model.reasoning
    for pieces in ([model.answer], [*model.answer]):
        if model.reasoning:
            reader = ReasoningReader(REASONING[model.reasoning], model.is_open)
            parts = [one for piece in pieces for one in reader.add(piece)] + reader.end()
            assert "".join(one.text for one in parts if isinstance(one, ReasoningPiece)) == "Hm."
            pieces = [one for one in parts if isinstance(one, str)]
        calls = CallReader(FORMATS[model.calls], {"look": {}})
        parts = [one for piece in pieces for one in calls.add(piece)] + calls.end()
        assert "".join(one for one in parts if isinstance(one, str)) == model.content
        assert calls.calls == [ToolCall("look", '{"at": "sea", "far": true}')]
