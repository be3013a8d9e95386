"""Bodies as the source of public clients builds them: what says nothing about the answer is no error."""

import json
from collections.abc import Iterator

import pytest
from caller import CALLER
from speller import DYNAMIC
from starlette.testclient import TestClient

from eagle_jax.api import Engine
from eagle_jax.jobs import rows
from eagle_jax.jobs.lines import Line
from eagle_jax.jobs.pending_row import make_pending_row
from eagle_jax.serving import create_app

CHAT, COMPLETION, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
CACHED = {"cache_control": {"type": "ephemeral"}}
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {"name": "look", "description": "See.", "parameters": AT}
TOOLS = [{"type": "function", "function": LOOK | {"strict": True}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "th"}'}}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]}
USER = {"role": "user", "content": "?"}
FORM = {"name": "a", "schema": AT, "strict": True}


def after(**answer) -> list[dict]:
    """A conversation with an earlier answer."""
    return [USER, {"role": "assistant", "content": "Hi"} | answer, USER]


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CHATS = {
    "openai-python": {"messages": after(refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None)},
    "openai-python, parsed": {"messages": after(parsed={"a": 1}, tool_calls=[])},
    "openai-python, a parsed call": {
        "messages": [
            {"role": "assistant", "tool_calls": [CALL | {"function": CALL["function"] | {"parsed_arguments": {}}}]},
            TOLD,
        ],
        "tools": TOOLS,
    },
    "openai-python, its other fields": {
        "messages": [USER],
        **{"service_tier": "priority", "store": True, "verbosity": "low", "reasoning_effort": "minimal"},
        **{"prompt_cache_options": {"mode": "auto"}, "moderation": None, "prediction": None, "metadata": {"a": "b"}},
    },
    "langchain's agents": {
        "messages": [USER],
        "tools": TOOLS,
        "response_format": {"type": "json_schema", "json_schema": FORM},
    },
    "langchain, thoughts": {
        "messages": after(content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a", "index": 1}])
    },
    "litellm": {"messages": after(thinking_blocks=[{}], images=[], provider_specific_fields={}, reasoning_content="")},
    "vercel ai": {
        "messages": [{"role": "assistant", "content": None, "tool_calls": [CALL | {"extra_content": {"a": 1}}]}, TOLD],
        "tools": TOOLS,
    }
    | USAGE,
    "cline": {
        "messages": [{"role": r, "content": [{"type": "text", "text": "a", **CACHED}]} for r in ("system", "user")],
        **{"tools": TOOLS, "parallel_tool_calls": False, "max_completion_tokens": 9, "reasoning_effort": None},
    },
    "openhands": {
        "messages": [{"role": "assistant", "content": [], "tool_calls": [CALL]}, TOLD | {"name": "look"} | CACHED]
    },
    "zed": {
        "messages": [{"role": "assistant", "content": [], "tool_calls": [CALL]}, TOLD | {"content": []}, USER],
        "tools": [{"type": "function", "function": {"name": "look", "description": None, "parameters": None}}],
    },
    "aider": {"messages": [USER, {"role": "assistant", "content": "Let me", "prefix": True}]},
    "dify": {"messages": [USER], "enable_thinking": False, "user": "", "stop": []},
    "guidellm": {"messages": [USER], "max_tokens": 9, "max_completion_tokens": 9, "ignore_eos": True} | USAGE,
    "vllm": {"messages": [USER], "guided_choice": ["a"], "guided_decoding_backend": "xgrammar"},
    "vllm, newer": {"messages": [USER], "structured_outputs": {"choice": ["a"], "disable_fallback": False}},
    "llama.cpp": {"messages": [USER], "response_format": {"type": "json_object", "schema": AT}},
}
COMPLETIONS = {
    "guidellm": {"prompt": "ab", "max_tokens": 9, "max_completion_tokens": 9, "ignore_eos": True} | USAGE,
    "lm-eval": {"prompt": [[70, 71]], "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234},
    "langchain": {"prompt": ["ab"], "n": 1, "best_of": 1, "suffix": None, "logprobs": None, "logit_bias": {}},
}
FLAT = [{"type": "function", "strict": False, **LOOK}]
ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "caller": None, "namespace": None}
RESPONSE = {
    "codex": {
        "instructions": "a",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": "x"},
            ITEM,
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
        ],
        **{"tools": FLAT, "store": False, "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"}},
        **{"reasoning": {"effort": "low", "summary": "auto"}, "prompt_cache_key": "a", "stream": True},
    },
    "vercel ai": {"input": [USER], "text": {"format": {"type": "json_schema", **FORM}}, "store": True},
}
CLEARED = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
MESSAGE = {
    "claude code": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "?", **CACHED}]}],
        **{"system": [{"type": "text", "text": "a", **CACHED}], "thinking": {"type": "enabled", "budget_tokens": 9}},
        **{"context_management": CLEARED, "metadata": {"user_id": "a"}, "stream": True},
    },
}
BODIES = [
    (path, name, body)
    for path, table in ((CHAT, CHATS), (COMPLETION, COMPLETIONS), (RESPONSES, RESPONSE), (MESSAGES, MESSAGE))
    for name, body in table.items()
]
# Fields that mean something to somebody else, some of them deep inside; --ignore-unknown passes over them.
PART = {"type": "text", "text": "a", "x": 1}
UNKNOWN = [
    (CHAT, {"messages": [USER], "repeat_penalty": 1.1}, "repeat_penalty"),
    (CHAT, {"messages": [USER], "random_seed": 1}, "random_seed"),
    (CHAT, {"messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0].x"),
    (CHAT, {"messages": [USER | {"mood": 1}]}, "messages[0].mood"),
    (CHAT, {"messages": [USER], "tools": [{"type": "function", "function": LOOK | {"x": 1}}]}, "tools[0].function.x"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL | {"x": 1}]}, TOLD]}, "messages[0].tool_calls[0].x"),
    (CHAT, {"messages": [USER], "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    (CHAT, {"messages": [USER], "structured_outputs": {"x": 1}}, "structured_outputs.x"),
    (RESPONSES, {"input": [USER | {"x": 1}]}, "input[0].x"),
    (RESPONSES, {"input": [{"role": "user", "content": [PART]}]}, "input[0].content[0].x"),
    (RESPONSES, {"input": "a", "tools": [FLAT[0] | {"x": 1}]}, "tools[0].x"),
    (RESPONSES, {"input": "a", "text": {"format": {"type": "text", "x": 1}}}, "text.format.x"),
    (MESSAGES, {"messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0].x"),
]  # fmt: skip
# Errors begin with the name that the client gave the field, whatever a chat calls it.
NOT = {"type": "object", "properties": {"at": {"not": {"type": "null"}}}, "required": ["at"]}
NAMED = [
    (RESPONSES, {"input": "a", "max_output_tokens": 0}, "max_output_tokens=0"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input=[]"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "a", "output": 5}]}, "input[0].output is"),
    (RESPONSES, {"input": "a", "text": {"format": {"type": "xml"}}}, "text.format="),
    (RESPONSES, {"input": "a", "text": {"format": FORM | {"type": "json_schema", "schema": NOT}}},
     "text.format.schema.properties.at.not"),
    (RESPONSES, {"input": "a", "tools": [FLAT[0] | {"parameters": NOT}], "tool_choice": "required"},
     "tools[0].parameters.properties.at.not"),
    (MESSAGES, {"messages": [USER], "stop_sequences": 5}, "stop_sequences must be"),
    (MESSAGES, {"messages": [USER], "system": 5}, "system is"),
    (MESSAGES, {"messages": [USER], "output_config": {"format": {"type": "json_schema", "schema": NOT}}},
     "output_config.format.schema.properties.at.not"),
    (MESSAGES, {"messages": [USER], "tools": [{"name": "look", "input_schema": NOT}], "tool_choice": {"type": "any"}},
     "tools[0].input_schema.properties.at.not"),
    (CHAT, {"messages": [USER], "stop": 5}, "stop must be a text or"),
]  # fmt: skip


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    with Engine(CALLER, rows=2, max_tokens=128, max_queue=8, **DYNAMIC) as engine:
        yield {"caller": engine}


@pytest.fixture(scope="module")
def client(engines) -> TestClient:
    return TestClient(create_app(engines))


def asked(path: str, body: dict) -> dict:
    longest = "max_output_tokens" if path == RESPONSES else "max_tokens"
    shortened = {} if any(name.startswith("max_") for name in body) else {longest: 2}
    return body | shortened | ({} if path == MESSAGES else {"temperature": 0})


def test_bodies_of_clients_are_answered(client):
    refused = {}
    for path, name, body in BODIES:
        told = client.post(path, json=asked(path, body))
        if told.status_code != 200 or '"error":{' in told.text:
            refused[path, name] = told.text
    assert not refused


def test_unknown_fields_are_refused_by_their_place_or_passed_over(client, engines):
    lenient = TestClient(create_app(engines, ignore_unknown=True))
    for path, body, name in UNKNOWN:
        refused, passed = (one.post(path, json=asked(path, body)) for one in (client, lenient))
        assert refused.status_code == 400 and f"'{name}' is not known here" in refused.json()["error"]["message"]
        assert passed.status_code == 200 and passed.headers["x-eagle-jax-ignored"] == name, passed.text


def test_errors_name_the_fields_of_the_request(client):
    for path, body, begin in NAMED:
        told = client.post(path, json=asked(path, body)).json()["error"]["message"]
        assert told.startswith(begin), told
    body = {"input": "a", "text": {"format": FORM | {"type": "json_schema", "schema": NOT}}}
    row = rows.read(Line(0, "a", json.dumps({"custom_id": "a", "url": RESPONSES, "body": body}).encode()))
    assert isinstance(row, rows.Row)
    refused = make_pending_row(CALLER, row, rows.Defaults())
    assert isinstance(refused, rows.RejectedRow) and refused.error.startswith("text.format.schema.properties.at.not")


def test_usage_in_every_event(client):
    body = {"messages": [USER], "n": 2, "stream": True, "temperature": 0}
    body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    events = [json.loads(line[6:]) for line in client.post(CHAT, json=body).text.splitlines() if "{" in line]
    *pieces, last = events
    for index in (0, 1):
        own = [event["usage"] for event in pieces if event["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in own]
        assert counts == sorted(counts) and counts[-1] == 6 == last["usage"]["completion_tokens"] // 2
        assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in own)


def test_a_byte_order_mark_and_too_many_answers(client):
    marked = b"\xef\xbb\xbf" + json.dumps({"messages": [USER], "max_tokens": 1}).encode()
    assert client.post(CHAT, content=marked).status_code == 200
    for body, path, what in (
        ({"messages": [USER], "n": 500}, CHAT, "n=500; expected at most 8 answers in total"),
        ({"prompt": ["a", "b"], "n": 5}, COMPLETION, "2 prompts with n=5; expected at most 8 answers in total"),
    ):
        assert what in client.post(path, json=body).json()["error"]["message"]
