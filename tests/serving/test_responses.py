"""OpenAI's own client asks for responses; their text is what chats get."""

import json
import urllib.error
import urllib.request

import openai
import pytest
from served import KEY, Served
from speller import DYNAMIC, SCRIPT, SPELLED, SPELLER, asked

from eagle_jax.api import generate

ASKS = dict(model="speller", input="Spell!", temperature=0)


def test_a_response(client):
    told = client.responses.create(**ASKS)
    assert (told.output_text, told.status, told.object, told.model) == (SPELLED, "completed", "response", "speller")
    assert told.id.startswith("resp-") and told.output[0].id.startswith("msg-") and told.incomplete_details is None
    result = generate(SPELLER, asked("Spell!"), max_new_tokens=40, **DYNAMIC)
    usage = told.usage
    assert (usage.input_tokens, usage.output_tokens) == (result.prompt_tokens, len(SCRIPT))
    assert usage.total_tokens == result.prompt_tokens + len(SCRIPT) and usage.input_tokens_details.cached_tokens == 0


def test_one_that_is_cut(client):
    told = client.responses.create(**ASKS, max_output_tokens=3)
    assert (told.output_text, told.status) == (SPELLED[:3], "incomplete")
    assert told.incomplete_details.reason == "max_output_tokens" and told.max_output_tokens == 3
    *_, last = client.responses.create(**ASKS, max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete" and last.response.output_text == SPELLED[:3]


def test_a_stream(client):
    events = list(client.responses.create(**ASKS, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == SPELLED == events[-1].response.output_text
    assert events[0].response.status == "in_progress" and events[0].response.output == []
    with client.responses.stream(**ASKS) as stream:  # the client's helper wants every event in its place
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == SPELLED


def test_conversations(client):
    first = client.responses.create(**ASKS, max_output_tokens=2)
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    talk = [
        {"role": "user", "content": "ab"},
        *[item.model_dump() for item in first.output],
        {"type": "message", "role": "user", "content": parts},
    ]
    told = client.responses.create(**ASKS | {"input": talk}, max_output_tokens=4)
    messages = [*asked("ab"), {"role": "assistant", "content": SPELLED[:2]}, *asked("ab")]
    result = generate(SPELLER, messages, max_new_tokens=4, **DYNAMIC)
    assert (told.usage.input_tokens, told.output_text) == (result.prompt_tokens, result.text)
    with pytest.raises(openai.BadRequestError, match="Only user and assistant may speak, not system!"):
        client.responses.create(**ASKS, instructions="Be brief.")


def test_what_changes_nothing_is_no_error(client):
    more = dict(store=False, tools=[], tool_choice="auto", truncation="disabled", text={"format": {"type": "text"}})
    told = client.responses.create(**ASKS, **more, user="a", metadata={"a": "b"}, extra_body={"seed": 3, "top_k": 5})
    assert told.output_text == SPELLED


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"input": []}, "input is an empty list; expected text, or at least one item"),
        ({"input": 7}, "input=7; expected a list"),
        ({"input": None}, "input is missing"),
        ({"input": [7]}, "input[0]=7; expected an object"),
        ({"input": [{"role": "user"}]}, "input[0].content is missing"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content is neither text nor a list of parts"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "this model reads text only"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output is missing"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type='computer_call' is not supported; expected message,"),
        ({"input": [{"role": "wizard", "content": "a"}]}, "input[0].role='wizard'; expected one of"),
        ({"previous_response_id": "resp-1"}, 'previous_response_id="resp-1" is not supported here'),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type='web_search'; only functions are supported"),
        ({"text": {"format": {"type": "yaml"}}}, 'text.format={"type": "yaml"}; expected'),
        ({"max_output_tokens": 0}, "max_output_tokens=0; expected a whole number"),
        ({"messages": asked("?")}, "field 'messages' is not known here"),
        ({"n": 2}, "field 'n' is not known here"),
    ],
)
def test_what_is_refused(served: Served, fields, message):
    body = json.dumps(ASKS | fields).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(urllib.request.Request(f"{served.url}/v1/responses", body, headers))
    assert message in json.loads(caught.value.read())["error"]["message"]


def test_a_stream_that_fails(client, served: Served, monkeypatch):
    monkeypatch.setattr(served.engines["speller"]._scheduler, "step", lambda: 1 / 0)
    with pytest.raises(openai.APIError, match="the engine failed while making this answer"):
        list(client.responses.create(**ASKS, stream=True))
    monkeypatch.undo()
    assert client.responses.create(**ASKS).output_text == SPELLED
