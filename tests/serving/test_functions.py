"""Functions that answers call, through OpenAI's own client."""

import json
from collections.abc import Iterator

import openai
import pytest
from caller import CALLER, PIECES
from served import KEY, Served
from speller import DYNAMIC, SPELLER, asked

from eagle_jax.api import Engine

PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "See.", "parameters": PLACE}}]
NAMED = {"type": "function", "function": {"name": "look"}}
AT = {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}, "required": ["at"]}
BOUNDED = [{"type": "function", "function": {"name": name, "parameters": AT}} for name in ("look", "go")]
AGAIN = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/a"}},
    "required": ["at"],
    "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}},
}
RECURSIVE = {"type": "function", "function": {"name": "look", "parameters": AGAIN}}
WORDS = {"extra_body": {"guided_choice": ["yes", "no"]}}
ASKS = dict(model="caller", messages=asked("?"), tools=TOOLS, temperature=0)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    room = dict(rows=2, max_tokens=128, steps=2, max_queue=8, **DYNAMIC)
    engines = {"caller": Engine(CALLER, **room), "plain": Engine(SPELLER, **room)}
    yield engines
    for engine in engines.values():
        engine.close(drain=False)


@pytest.fixture(scope="module")
def hermes(engines) -> Iterator[openai.OpenAI]:
    """A client of a server that goes by the template."""
    yield from _served(engines, None)


@pytest.fixture(scope="module")
def mistral(engines) -> Iterator[openai.OpenAI]:
    """A client of a server that is told otherwise."""
    yield from _served(engines, "mistral")


def _served(engines: dict[str, Engine], tool_format: str | None) -> Iterator[openai.OpenAI]:
    served = Served(engines, api_key=KEY, tool_format=tool_format)
    with served.client() as client:
        yield client
    served.stop()


def script(begin: str) -> dict:
    return {"extra_body": {"chat_template_kwargs": {"script": begin}}}


def streamed(client: openai.OpenAI, **asks):
    """The deltas of an answer, and how it ended."""
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asks)]
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    return [chunk.delta for chunk in chunks], chunks[-1].finish_reason


def test_a_call_and_what_is_said_before(hermes):
    choice = hermes.chat.completions.create(**ASKS).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.message.content, choice.finish_reason, call.type) == ("Let me see.", "tool_calls", "function")
    assert (call.function.name, call.function.arguments) == ("look", '{"at": "sea"}') and call.id.startswith("call_")
    again = hermes.chat.completions.create(**ASKS).choices[0].message.tool_calls[0]
    assert again.function == call.function and again.id != call.id


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"extra_body": {"eagle": True}}])
def test_a_stream_of_it(hermes, more):
    deltas, reason = streamed(hermes, **ASKS, **more)
    assert reason == "tool_calls" and deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    named, argued = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert (named.index, named.type, named.function.name, named.function.arguments) == (0, "function", "look", "")
    assert named.id and (argued.index, argued.id, argued.function.name) == (0, None, None)
    assert argued.function.arguments == '{"at": "sea"}'
    places = [chunk for chunk in hermes.chat.completions.create(stream=True, **ASKS, **more) if chunk.choices]
    if "logprobs" in more:
        tokens = [place for chunk in places if chunk.choices[0].logprobs for place in chunk.choices[0].logprobs.content]
        assert len(tokens) == len(PIECES["<|assistant|>"]) + 1
    if "extra_body" in more:
        assert sum(len(chunk.eagle["token_ids"]) for chunk in places if hasattr(chunk, "eagle")) == 6


def test_what_is_no_call_is_text(hermes):
    text = "".join(PIECES["a"])
    choice = hermes.chat.completions.create(**ASKS, **script("a")).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
    deltas, reason = streamed(hermes, **ASKS, **script("a"))
    assert ("".join(delta.content or "" for delta in deltas), reason) == (text, "stop")


def test_a_call_that_is_cut_is_text(hermes):
    choice = hermes.chat.completions.create(**ASKS, max_tokens=3).choices[0]
    assert choice.message.content == "".join(PIECES["<|assistant|>"][:3]).rstrip() + " "
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "length")
    stopped = hermes.chat.completions.create(**ASKS, stop="sea").choices[0]
    assert stopped.message.content.endswith('{"at": "') and stopped.finish_reason == "stop"


def test_without_tools_it_is_all_text(hermes):
    for more in ({"tool_choice": "none"}, {"tools": [], "tool_choice": "auto"}, {"tools": []}):
        choice = hermes.chat.completions.create(**ASKS | more).choices[0]
        assert choice.message.content == "".join(PIECES["<|assistant|>"]) and choice.finish_reason == "stop"


def test_marks_that_are_special_tokens(mistral):
    choice = mistral.chat.completions.create(**ASKS, **script("b")).choices[0]
    assert [call.function.arguments for call in choice.message.tool_calls] == ["{}", "{}"]
    assert choice.message.content is None and choice.finish_reason == "tool_calls"
    assert all(len(call.id) == 9 for call in choice.message.tool_calls)
    deltas, _ = streamed(mistral, **ASKS, **script("b"))
    assert [delta.tool_calls[0].index for delta in deltas if delta.tool_calls] == [0, 0, 1, 1]
    one = mistral.chat.completions.create(**ASKS, **script("b"), parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1


def test_what_was_called_before(hermes):
    function = {"name": "look", "arguments": '{"at": "th"}'}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    answered = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "blue"}]}
    asks = ASKS | {"messages": [*asked("?"), called, answered]}
    usage = hermes.chat.completions.create(**asks).usage
    expected = "1<|user|>?<|user|>th<|user|>lookblue<|assistant|>"
    assert usage.prompt_tokens == len(CALLER.tokenizer(expected)["input_ids"])


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_is_asked_for(hermes, choice, temperature):
    asks = ASKS | {"tools": BOUNDED, "tool_choice": choice, "temperature": temperature, "seed": 3}
    answer = hermes.chat.completions.create(**asks).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.message.content is None and answer.finish_reason == "tool_calls"
    assert call.function.name in ("look", "go") if choice == "required" else call.function.name == "look"
    assert json.loads(call.function.arguments)["at"] in ("sea", "sky")
    deltas, reason = streamed(hermes, **asks)
    assert reason == "tool_calls" and not any(delta.content for delta in deltas)
    pieces = [delta.tool_calls[0].function for delta in deltas if delta.tool_calls]
    assert "".join(piece.arguments for piece in pieces) == call.function.arguments


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"model": "plain"},
            "chat template does not support tools; leave tools and their results out, or give tool_choice",
        ),
        ({"tool_choice": NAMED, "tools": [RECURSIVE]}, "tools[0].function.parameters.properties.at.items.items"),
        ({"tool_choice": "always"}, 'tool_choice="always"; expected "auto", "none", "required" or'),
        ({"tool_choice": {"type": "function", "function": {"name": "go"}}}, 'names "go"; expected one of look'),
        ({"tools": [], "tool_choice": "required"}, 'tool_choice="required" without tools'),
        ({"tools": TOOLS * 2}, "tools has two entries named 'look'"),
        ({"tools": [{"type": "web_search"}]}, 'tools[0]={"type": "web_search"}; expected {"type": "function"'),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls=1; expected true or false"),
    ],
)
def test_what_is_refused(hermes, fields, message):
    with pytest.raises(openai.BadRequestError) as caught:
        hermes.chat.completions.create(**ASKS | fields)
    assert message in caught.value.body["message"]


def test_a_call_or_the_form_that_is_asked_for(hermes):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    asks = ASKS | {"tools": BOUNDED, "response_format": form, "temperature": 2}
    ended = set()
    for seed in range(8):
        choice = hermes.chat.completions.create(**asks, seed=seed).choices[0]
        ended.add(choice.finish_reason)
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content)["ok"], bool) and not choice.message.tool_calls
        else:
            (call,) = choice.message.tool_calls
            assert json.loads(call.function.arguments)["at"] in ("sea", "sky") and choice.message.content is None
    assert ended == {"stop", "tool_calls"}
    called = hermes.chat.completions.create(**asks | {"tool_choice": "required"}).choices[0]
    assert called.finish_reason == "tool_calls"
    word = hermes.chat.completions.create(**asks | {"tool_choice": "none", "response_format": None}, **WORDS)
    assert word.choices[0].message.content in ("yes", "no")


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOLD = {"role": "tool", "tool_call_id": "1", "content": "blue"}


@pytest.mark.parametrize(
    "message, sentence",
    [
        ({"role": "tool", "content": "blue"}, "messages[0].tool_call_id is missing"),
        ({"role": "tool", "tool_call_id": "1"}, "messages[0].content is missing"),
        ({"role": "assistant", "content": None}, "messages[0].content is missing"),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "field 'messages[0].tool_calls' is not known"),
        ({"role": "assistant", "tool_calls": 7}, "messages[0].tool_calls=7; expected a list"),
        ({"role": "assistant", "tool_calls": [7]}, "messages[0].tool_calls[0]=7; expected an object"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": None}]}, "messages[0].tool_calls[0].id is missing"),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "x"}]}, 'tool_calls[0].type="x" is not supported'),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "a", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments is not JSON; expected the JSON text of an object",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "a", "arguments": "[]"}}]},
            "messages[0].tool_calls[0].function.arguments=[]; expected an object",
        ),
    ],
)
def test_messages_that_are_none(hermes, message, sentence):
    with pytest.raises(openai.BadRequestError) as caught:
        hermes.chat.completions.create(**ASKS | {"messages": [message]})
    assert sentence in caught.value.body["message"]


@pytest.mark.parametrize("message", [TOLD, {"role": "assistant", "tool_calls": [CALL]}])
def test_messages_that_a_template_knows_nothing_of(hermes, message):
    with pytest.raises(
        openai.BadRequestError, match="chat template does not support tools; leave tools and their results"
    ):
        hermes.chat.completions.create(model="plain", messages=[message])


def test_a_form_that_is_not_known(hermes, monkeypatch):
    monkeypatch.setattr(CALLER.tokenizer, "chat_template", "{% if tools %}<call f>{% endif %}")
    with pytest.raises(openai.BadRequestError, match="unknown; serve it with --tool-format and one of harmony"):
        hermes.chat.completions.create(**ASKS)


def test_a_format_that_there_is_not(engines):
    with pytest.raises(ValueError, match="tool_format='pythonic'; expected one of harmony, mistral-args"):
        Served(engines, tool_format="pythonic")


def test_tokens_of_a_prompt_with_tools(hermes):
    told = {}
    for tools in ([], TOOLS):
        body = {"model": "caller", "messages": asked("?"), "tools": tools}
        told[len(tools)] = hermes.post("/../tokenize", body=body, cast_to=dict[str, object])
    assert told[1]["count"] == told[0]["count"] + 1


FLAT = [{"type": "function", "strict": None, **TOOLS[0]["function"]}]
SAID = dict(model="caller", tools=FLAT, temperature=0)


def test_calls_in_responses(hermes):
    told = hermes.responses.create(**SAID, input="?")
    message, call = told.output
    assert (message.content[0].text, call.type, call.name, call.arguments) == (
        *("Let me see.", "function_call", "look"),
        '{"at": "sea"}',
    )
    assert told.status == "completed" and told.tools[0].name == "look" and told.output_text == "Let me see."
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "blue"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    talk = [*asked("?"), thought, *[item.model_dump(exclude_none=True) for item in told.output], output]
    again = hermes.responses.create(**SAID, input=talk)
    rendered = "1<|user|>?<|user|>Let me see.sea<|user|>lookblue<|assistant|>"
    assert again.usage.input_tokens == len(CALLER.tokenizer(rendered)["input_ids"])
    cut = hermes.responses.create(**SAID, input="?", tool_choice="none")
    assert [item.type for item in cut.output] == ["message"] and cut.output_text == "".join(PIECES["<|assistant|>"])


def test_a_stream_of_responses_with_calls(hermes):
    with hermes.responses.stream(**SAID, input="?") as stream:  # the helper wants every event in its place
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in events]
    called = [
        "output_item.added",
        *(f"function_call_arguments.{kind}" for kind in ("delta", "done")),
        "output_item.done",
    ]
    assert kinds[-6:] == ["output_item.done", *called, "completed"] and kinds.count("created") == 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["message", "function_call"]
    assert final.output[1].arguments == '{"at": "sea"}' and events[-3].arguments == '{"at": "sea"}'


def test_forms_and_choices_in_responses(hermes):
    form = {"format": {"type": "json_schema", "name": "place", "schema": AT, "strict": True}, "verbosity": "low"}
    told = hermes.responses.create(model="caller", input="?", text=form, reasoning={"effort": "low"}, temperature=0)
    assert json.loads(told.output_text)["at"] in ("sea", "sky")
    flat = [{"type": "function", **tool["function"]} for tool in BOUNDED]
    for choice, names in (("required", {"look", "go"}), ({"type": "function", "name": "go"}, {"go"})):
        told = hermes.responses.create(**SAID | {"tools": flat}, input="?", tool_choice=choice)
        assert [item.type for item in told.output] == ["function_call"] and told.output[0].name in names
