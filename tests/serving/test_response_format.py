"""Structured output over HTTP, under the names of OpenAI, vLLM and SGLang."""

import json
from typing import Literal

import openai
import pydantic
import pytest
from served import Served
from speller import DYNAMIC, SPELLER, asked

from eagle_jax.api import generate


class Light(pydantic.BaseModel):
    on: bool
    colour: Literal["red", "blue"]


SCHEMA = Light.model_json_schema()
LIGHT = generate(SPELLER, asked("?"), json_schema=SCHEMA, max_new_tokens=40, **DYNAMIC).text
assert isinstance(json.loads(LIGHT)["on"], bool)
HOW = {
    "OpenAI": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "light", "schema": SCHEMA, "strict": True}}
    },
    "vLLM": {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    "vLLM before": {"extra_body": {"guided_json": SCHEMA}},
    "SGLang": {"extra_body": {"json_schema": json.dumps(SCHEMA)}},
}


@pytest.mark.parametrize("name", HOW)
def test_schemas(client: openai.OpenAI, name: str):
    answer = client.chat.completions.create(model="speller", messages=asked("?"), temperature=0, **HOW[name])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (LIGHT, "stop")


def test_the_client_parses_it_as_the_type_that_it_asked_for(client: openai.OpenAI):
    answer = client.chat.completions.parse(model="speller", messages=asked("?"), temperature=0, response_format=Light)
    assert answer.choices[0].message.parsed == Light.model_validate_json(LIGHT)


def test_a_stream_in_form(client: openai.OpenAI):
    stream = client.chat.completions.create(
        model="speller", messages=asked("?"), temperature=0, stream=True, **HOW["OpenAI"]
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == LIGHT


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("how", "option"),
    [
        ({"guided_choice": ["yes", "no"]}, {"choices": ["yes", "no"]}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choices": ["yes", "no"]}),
        ({"choices": ["yes", "no"]}, {"choices": ["yes", "no"]}),
        ({"guided_regex": "[a-c]{2}[0-9]"}, {"regex": "[a-c]{2}[0-9]"}),
        ({"regex": "[a-c]{2}[0-9]"}, {"regex": "[a-c]{2}[0-9]"}),
        ({"structured_outputs": {"regex": "[a-c]{2}[0-9]"}}, {"regex": "[a-c]{2}[0-9]"}),
    ],
)
def test_choices_and_expressions(client: openai.OpenAI, how: dict, option: dict):
    expected = generate(SPELLER, asked("?"), max_new_tokens=20, **option, **DYNAMIC)
    answer = client.chat.completions.create(
        model="speller", messages=asked("?"), temperature=0, max_tokens=20, extra_body=how
    )
    assert answer.choices[0].message.content == expected.text
    answer = client.completions.create(
        model="speller", prompt="ab", temperature=0, max_tokens=20, extra_body=how, logprobs=1
    )
    assert answer.choices[0].text == generate(SPELLER, "ab", max_new_tokens=20, **option, **DYNAMIC).text


def test_no_log_probabilities_of_a_stop_string(client: openai.OpenAI):
    how = dict(model="speller", messages=asked("?"), temperature=0, stop="d", logprobs=True)
    answer = client.chat.completions.create(**how).choices[0]
    assert answer.message.content == "abc" and [place.token for place in answer.logprobs.content] == ["a", "b", "c"]
    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**how, stream=True) if chunk.choices]
    told = [place.token for piece in pieces if piece.logprobs for place in piece.logprobs.content]
    assert told == ["a", "b", "c"]
    answer = client.completions.create(model="speller", prompt="ab", temperature=0, max_tokens=9, stop="ef", logprobs=1)
    assert answer.choices[0].text == "cd" and answer.choices[0].logprobs.tokens[:2] == ["c", "d"]


def test_any_json_object(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="speller",
        messages=asked("?"),
        temperature=0,
        max_tokens=12,
        response_format={"type": "json_object"},
    )
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"response_format": {"type": "json"}}, 'response_format={"type": "json"}; expected'),
        ({"response_format": {"type": "json_schema"}}, "response_format has no schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "an answer has one form"),
        ({"guided_json": {"$ref": "#"}}, "guided_json is recursive"),
        ({"guided_regex": "a(?=b)"}, "is not supported"),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "grammar.* is not supported here"),
        (
            {"guided_json": {"properties": {"a": {"not": {"const": 2}}}}},
            r"guided_json\.properties\.a\.not is not supported",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"items": {"type": 3}}},
                }
            },
            r"response_format\.json_schema\.schema\.items\.type=3; expected",
        ),
    ],
)
def test_what_cannot_be_followed(served: Served, client: openai.OpenAI, how: dict, message: str):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(model="speller", messages=asked("?"), extra_body=how)
