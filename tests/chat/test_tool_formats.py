"""Which format of calls a chat template teaches, and ids of calls."""

from eagle_jax.chat.tool_formats import FORMATS, call_id, format_of, supports_tools, template_of

TEMPLATES = {
    "harmony": "{% if tools %}{% endif %}<|channel|>analysis<|message|>",
    "mistral-args": "{% if tools %}{% endif %}[TOOL_CALLS]look[ARGS]{}",
    "deepseek-v3": "{% if tools %}{% endif %}<｜tool▁calls▁begin｜>```json<｜tool▁calls▁end｜>",
    "deepseek-v3.1": "{% if tools %}{% endif %}<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
    "kimi-k2": "{% if tools %}{% endif %}<|tool_calls_section_begin|>",
    "minimax-m2": "{% if tools %}{% endif %}{% set begin = '<minimax:tool_call>' %}",
    "seed-oss": "{% if tools %}{% endif %}{% set begin = '<seed:tool_call>' %}<function=a>\n<parameter=b>",
    "qwen3-coder": "{% if tools %}{% endif %}<tool_call>\n<function=a>\n<parameter=b>",
    "glm4": "{% if tools %}{% endif %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
    "hunyuan": "{% if tools %}{% endif %}<tool_calls>[]</tool_calls>",
    "granite": "{% if tools %}{% endif %}write <|tool_call|> and a list",
    "hermes": "{% if tools %}<tools>...</tools> within <tool_call></tool_call> tags {% endif %}",
    "llama3": '{% if tools is not none %}{"name": function name, "parameters": dictionary}. {% endif %}',
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS] [",
}


def test_the_format_is_the_templates():
    assert TEMPLATES.keys() == FORMATS.keys()
    for name, template in TEMPLATES.items():
        assert format_of(template) == FORMATS[name] and supports_tools(template)
    for template in (
        '{"parameters": {}}',
        "{{ messages }}",
        "the tooling",
    ):
        assert format_of(template) is None and not supports_tools(template)


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
    assert (
        call_id(FORMATS["hermes"], "a", 0) == call_id(FORMATS["hermes"], "a", 0) != call_id(FORMATS["hermes"], "a", 1)
    )
    assert call_id(FORMATS["hermes"], "a", 0).startswith("call_")
    assert len(call_id(FORMATS["mistral"], "a", 0)) == 9 and call_id(FORMATS["mistral"], "a", 0).isalnum()
