"""Anthropic's form of chats: what its clients send, and that the text is what chats get."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from caller import CALLER
from served import KEY, Served
from speller import DYNAMIC
from starlette.testclient import TestClient

from eagle_jax.api import Engine
from eagle_jax.serving import create_app

URL = "/v1/messages"
LIBRARIES = pathlib.Path(__file__).parents[2] / "build" / "clients"  # `make build/clients`
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [{"name": "look", "description": "See.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]
USED = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "th"}}
TALK = [
    {"role": "user", "content": [{"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, USED]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sea"}]},
            {"type": "text", "text": "And?"},
        ],
    },
]
ASKS: dict[str, Any] = {"model": "caller", "max_tokens": 20, "temperature": 0}
SYSTEM = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}}]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    with Engine(CALLER, rows=2, max_tokens=128, steps=2, max_queue=8, **DYNAMIC) as engine:
        yield {"caller": engine}


@pytest.fixture(scope="module")
def client(engines) -> TestClient:
    return TestClient(create_app(engines, api_key=KEY), headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"})


def ask(client: TestClient, **fields) -> dict:
    told = client.post(URL, json=ASKS | fields)
    assert told.status_code == 200, told.text
    return told.json()


def streamed(client: TestClient, **fields) -> list[dict]:
    """The events of a stream, each of which is named twice."""
    lines = client.post(URL, json=ASKS | fields | {"stream": True}).text.strip().split("\n\n")
    events = [event.split("\n") for event in lines]
    assert all(name == f"event: {json.loads(data[6:])['type']}" for name, data in events)
    return [json.loads(data[6:]) for _, data in events]


def test_a_call_and_what_is_said_before(client):
    told = ask(
        client, messages=TALK, system=SYSTEM, tools=TOOLS, metadata={"user_id": "a"}, thinking={"type": "disabled"}
    )
    said, called = told["content"]
    assert said == {"type": "text", "text": "Let me see."} and called["type"] == "tool_use"
    assert (called["name"], called["input"], told["stop_reason"]) == ("look", {"at": "sea"}, "tool_use")
    rendered = "1<|user|>Be brief.<|user|>?<|user|>th<|user|>looksea<|user|>And?<|assistant|>"
    count = len(CALLER.tokenizer(rendered)["input_ids"])
    usage = told["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count and usage["output_tokens"] == 6
    counted = client.post(f"{URL}/count_tokens", json={"messages": TALK, "system": SYSTEM, "tools": TOOLS})
    assert counted.json() == {"input_tokens": count}


def test_a_stream(client):
    events = streamed(client, messages=TALK, tools=TOOLS)
    kinds = [event["type"] for event in events]
    text = [
        "content_block_start",
        *["content_block_delta"] * kinds[3:].index("content_block_stop"),
        "content_block_stop",
    ]
    call = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", "ping", *text, *call, "message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Let me see."
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"at": "sea"}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 6 and events[0]["message"]["usage"]["input_tokens"] > 0


def test_how_answers_end(client):
    question = [{"role": "user", "content": "?"}]
    ended = ask(client, messages=question)
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
    cut = ask(client, messages=question, max_tokens=1)
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "Let me")
    stopped = ask(client, messages=question, stop_sequences=["~", "tool_call"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "tool_call")
    assert stopped["content"][0]["text"] == "Let me see.\n<"
    begun = ask(client, messages=[*question, {"role": "assistant", "content": "<|assistant|>Let me"}], max_tokens=1)
    assert begun["content"][0]["text"] == " see.\n"


def test_calls_and_forms_that_are_asked_for(client):
    question = [{"role": "user", "content": "?"}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "look", "disable_parallel_tool_use": True}):
        bounded = [TOOLS[0] | {"input_schema": {"type": "object", "properties": {"at": {"enum": ["sea"]}}}}]
        told = ask(client, messages=question, tools=bounded, tool_choice=choice, max_tokens=60)
        assert told["stop_reason"] == "tool_use" and told["content"][0]["name"] == "look"
    assert "tool_use" not in str(ask(client, messages=question, tools=TOOLS, tool_choice={"type": "none"}))
    form = {"format": {"type": "json_schema", "schema": {"enum": ["sea"]}}, "effort": "low"}
    assert ask(client, messages=question, output_config=form)["content"][0]["text"] == '"sea"'


@pytest.mark.parametrize(
    "fields, kind, message",
    [
        ({"max_tokens": None}, "invalid_request_error", "max_tokens is missing"),
        ({"messages": []}, "invalid_request_error", "messages=[]; expected a list"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "invalid_request_error", "expected user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "a"}]}]}, "invalid_request_error", "content[0].type='a'"),
        ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "invalid_request_error", "tools[0].type="),
        ({"tool_choice": {"type": "some"}}, "invalid_request_error", "tool_choice.type='some'; expected auto"),
        ({"temperature": 1.5}, "invalid_request_error", "temperature=1.5; expected a number from 0 to 1"),
        ({"mood": 1}, "invalid_request_error", "field 'mood' is not known here"),
        ({"model": "claude"}, "not_found_error", "the model 'claude' does not exist here"),
    ],
)  # fmt: skip
def test_errors_in_its_form(client, fields, kind, message):
    told = client.post(URL, json=ASKS | {"messages": [{"role": "user", "content": "?"}]} | fields)
    assert told.status_code in (400, 404) and told.json()["type"] == "error"
    assert told.json()["error"]["type"] == kind and message in told.json()["error"]["message"]


def test_keys_and_streams_that_fail(client, engines, monkeypatch):
    for headers in ({"x-api-key": "wrong"}, {"authorization": "Bearer wrong", "x-api-key": "wrong"}):
        told = client.post(URL, json={}, headers=headers)
        assert told.status_code == 401 and told.json()["error"]["type"] == "authentication_error"
    monkeypatch.setattr(engines["caller"]._scheduler, "step", lambda: 1 / 0)
    *_, last = streamed(client, messages=TALK, tools=TOOLS)
    assert last["type"] == "error" and last["error"]["type"] == "api_error"


SCRIPT = """
import anthropic, json, sys

client = anthropic.Anthropic(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
asks = json.loads(sys.argv[3])
told = client.messages.create(**asks)
with client.messages.stream(**asks) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == "Let me see." and [block.to_dict() for block in final.content][1]["input"] == told.content[1].input
assert final.stop_reason == told.stop_reason == "tool_use", final
print(client.messages.count_tokens(model="caller", messages=asks["messages"]).input_tokens > 5)
try:
    client.messages.create(**asks | {"model": "none"})
except anthropic.NotFoundError as error:
    print(error.body["error"]["message"])
"""


@pytest.mark.proof
def test_its_own_client(engines):
    if not (LIBRARIES / "anthropic").exists():
        pytest.skip("the clients are not installed: make build/clients")
    served = Served(engines, api_key=KEY)
    asks = {"model": "caller", "max_tokens": 20, "messages": TALK, "system": "Be brief.", "tools": TOOLS}
    asks |= {"extra_body": {"temperature": 0}}
    command = [sys.executable, "-c", SCRIPT, served.url, KEY, json.dumps(asks)]
    try:
        done = subprocess.run(command, env={"PYTHONPATH": str(LIBRARIES)}, capture_output=True, text=True, check=False)
    finally:
        served.stop()
    assert done.stdout.splitlines()[:1] == ["True"] and "does not exist here" in done.stdout, done.stderr
