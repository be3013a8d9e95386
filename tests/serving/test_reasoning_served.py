"""Reasoning apart from the text, in all three protocols: whole, streamed, and given back in the next turn."""

import json
from collections.abc import Iterator

import openai
import pytest
from served import KEY, Served
from speller import DYNAMIC, asked
from starlette.testclient import TestClient
from thinker import ANSWER, CHANNELED, THINKER, THOUGHT

from eagle_jax.api import Engine, encode

LOOK = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 3}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
CALLED = 'to=functions.look {"at": "sea"}'
ASKS = dict(model="thinker", messages=asked("?"), temperature=0)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    room = dict(rows=2, max_tokens=128, steps=2, max_queue=8, **DYNAMIC)
    engines = {"thinker": Engine(THINKER, **room), "channeled": Engine(CHANNELED, **room)}
    yield engines
    for engine in engines.values():
        engine.close(drain=False)


def kwargs(**values) -> dict:
    return {"extra_body": {"chat_template_kwargs": values}}


def streamed(client: openai.OpenAI, **asks) -> tuple[str, str, str | None]:
    deltas, reason = [], None
    for chunk in client.chat.completions.create(stream=True, **asks):
        deltas.append(chunk.choices[0].delta)
        reason = chunk.choices[0].finish_reason or reason
    return (
        "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas),
        "".join(delta.content or "" for delta in deltas),
        reason,
    )


@pytest.mark.parametrize(
    "more, thought, content",
    [
        ({}, THOUGHT, ANSWER),
        ({"tools": TOOLS}, THOUGHT, ANSWER),
        (kwargs(script="<think>"), THOUGHT, ANSWER),
        (kwargs(enable_thinking=False), "", f"\n\n{ANSWER}"),
        ({"extra_body": {"enable_thinking": False}}, "", f"\n\n{ANSWER}"),
        ({"reasoning_effort": "none"}, "", f"\n\n{ANSWER}"),
        ({"extra_body": {"include_reasoning": False}}, "", ANSWER),
        ({"extra_body": {"separate_reasoning": False}}, "", f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"),
        ({"max_tokens": 2}, "Hm,", ""),
    ],
)
def test_reasoning_in_chats(client, more, thought, content):
    answer = client.chat.completions.create(**ASKS, **more)
    message = answer.choices[0].message
    assert (getattr(message, "reasoning_content", ""), message.content) == (thought, content)
    assert streamed(client, **ASKS, **more)[:2] == (thought, content)
    tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert (tokens > 0) == (more.get("extra_body") == {"include_reasoning": False} or bool(thought))


def test_a_call_after_reasoning(client):
    asks = ASKS | kwargs(script="a") | {"tools": TOOLS}
    message = client.chat.completions.create(**asks).choices[0].message
    assert message.tool_calls[0].function.name == "look" and not hasattr(message, "reasoning_content")


def test_a_call_in_channels(client):
    asks = ASKS | {"model": "channeled", "tools": TOOLS}
    choice = client.chat.completions.create(**asks).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert (call.function.name, call.function.arguments) == ("look", '{"at": "sea"}')
    assert streamed(client, **asks) == ("", "", "tool_calls")
    said = client.chat.completions.create(**ASKS | {"model": "channeled"}).choices[0].message
    assert (said.content, said.tool_calls) == (CALLED, None), "a call that nobody offered is text"
    asks = ASKS | {"model": "channeled", "extra_body": {"separate_reasoning": False}}
    assert client.chat.completions.create(**asks).choices[0].message.content == CALLED


@pytest.mark.parametrize("begun", [{}, {"script": "<think>"}])
def test_a_form_holds_the_answer_and_not_the_reasoning(client, begun):
    for word in (ANSWER, "It is 8."):
        body = {"chat_template_kwargs": begun, "guided_choice": [word]}
        message = client.chat.completions.create(**ASKS, extra_body=body).choices[0].message
        assert (message.reasoning_content, message.content) == (THOUGHT, word)


def test_a_call_that_has_to_come_after_reasoning(client):
    choice = client.chat.completions.create(**ASKS, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.message.reasoning_content == THOUGHT and choice.message.tool_calls[0].function.name == "look"
    asks = ASKS | {"model": "channeled", "tools": TOOLS, "tool_choice": "required"}
    choice = client.chat.completions.create(**asks).choices[0]
    assert (choice.message.content, choice.message.tool_calls[0].function.arguments) == (None, '{"at": "sea"}')


def test_it_is_left_where_the_server_is_told_so(engines):
    served = Served(engines, api_key=KEY, reasoning_format="none")
    with served.client() as client:
        message = client.chat.completions.create(**ASKS).choices[0].message
        said = client.chat.completions.create(**ASKS | {"model": "channeled"}).choices[0].message
    served.stop()
    assert said.content == CALLED
    assert message.content == f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}" and not hasattr(message, "reasoning_content")
    with pytest.raises(ValueError, match="reasoning_format='thin'; expected one of harmony, "):
        Served(engines, reasoning_format="thin")


def test_earlier_reasoning_is_given_back(client, served, engines):
    for model, name in (("thinker", "reasoning_content"), ("channeled", "thinking")):
        engine = engines[model]
        expected = engine.encode([{"role": "user", "content": "?"}, {"role": "assistant", "content": "7", name: "Hm"}])
        for thought in ({"reasoning_content": "Hm"}, {"reasoning": "Hm"}):
            messages = [*asked("?"), {"role": "assistant", "content": "7"} | thought]
            usage = client.chat.completions.create(**ASKS | {"model": model, "messages": messages}).usage
            assert usage.prompt_tokens == len(expected)
        items = [
            {"role": "user", "content": "?"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"role": "assistant", "content": "7"},
        ]
        assert client.responses.create(model=model, input=items).usage.input_tokens == len(expected)
    without = encode(THINKER.tokenizer, [*asked("?"), {"role": "assistant", "content": "7"}], 272, "it")
    assert len(without) != len(expected)


def test_reasoning_in_responses(client):
    answer = client.responses.create(model="thinker", input="?", temperature=0)
    thought, message = answer.output
    assert (thought.type, thought.content[0].text, message.content[0].text) == ("reasoning", THOUGHT, ANSWER)
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    events = list(client.responses.create(model="thinker", input="?", temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = {kind: "".join(one.delta for one in events if one.type == f"response.{kind}.delta") for kind in KINDS}
    assert texts == {"reasoning_text": THOUGHT, "output_text": ANSWER}
    assert [one.item.type for one in events if one.type == "response.output_item.done"] == ["reasoning", "message"]
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]


KINDS = ("reasoning_text", "output_text")


def test_reasoning_in_messages(served, engines):
    client = TestClient(served.app, headers={"x-api-key": KEY})

    def ask(**more):
        asks = dict(model="thinker", max_tokens=20, messages=asked("?"), temperature=0)
        told = client.post("/v1/messages", json=asks | more)
        assert told.status_code == 200, told.text
        return told

    thought, text = ask().json()["content"]
    assert thought == {"type": "thinking", "thinking": THOUGHT, "signature": ""} and text["text"] == ANSWER
    told = [json.loads(line[6:]) for line in ask(stream=True).text.split("\n") if line.startswith("data: ")]
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("text", "") for delta in deltas) == ANSWER
    kinds = dict.fromkeys(delta["type"] for delta in deltas)
    assert [*kinds] == ["thinking_delta", "signature_delta", "text_delta"]
    assert [one["index"] for one in told if one["type"] == "content_block_stop"] == [0, 1]
    off = ask(thinking={"type": "disabled"}).json()
    assert [block["text"] for block in off["content"]] == [f"\n\n{ANSWER}"]
    again = [*asked("?"), {"role": "assistant", "content": [thought, text]}, *asked("!")]
    expected = [*asked("?"), {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}, *asked("!")]
    counted = client.post("/v1/messages/count_tokens", json={"messages": again}).json()["input_tokens"]
    assert counted == len(engines["thinker"].encode(expected))


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_switches_that_are_none_are_refused(client, name):
    with pytest.raises(openai.BadRequestError, match=f"chat_template_kwargs.{name}"):
        client.chat.completions.create(**ASKS, **kwargs(**{name: "false"}))
