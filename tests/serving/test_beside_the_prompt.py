"""With a tokenizer like Llama 2's the server says what transformers adds to the prompt, wherever it says it."""

from collections.abc import Iterator

import openai
import pytest
from served import KEY, Served
from spaced import SPACED, TOKENIZER, WORDS, added
from speller import DYNAMIC

from eagle_jax.api import Chat, Engine, encode

MESSAGES = [{"role": "user", "content": "ab"}]
BEGUN = [*MESSAGES, {"role": "assistant", "content": "é"}]
EXTRA = {"allowed_token_ids": WORDS[:6], "ignore_eos": True, "eagle": True}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Engine(SPACED, rows=2, max_tokens=48, steps=2, max_queue=8, **DYNAMIC) as engine:
        served = Served({"spaced": engine}, api_key=KEY)
        with served.client() as client:
            yield client
        served.stop()


def ids_of(prompt) -> list[int]:
    return encode(TOKENIZER, prompt, 272, "the prompt")


def told_ids(chunks: list) -> list[int]:
    return [id_ for chunk in chunks for id_ in (chunk.model_extra.get("eagle") or {"token_ids": []})["token_ids"]]


@pytest.mark.parametrize("echo", [False, True])
def test_completions(client, echo: bool):
    spaces = 0
    for prompt in ("ab a", "b", "é", "a b"):
        how = dict(model="spaced", prompt=prompt, max_tokens=8, temperature=1, seed=0, logprobs=1, echo=echo)
        (choice,) = client.completions.create(**how, extra_body=EXTRA).choices
        chunks = list(client.completions.create(**how, stream=True, extra_body=EXTRA))
        assert choice.text == (prompt if echo else "") + added(ids_of(prompt), told_ids(chunks))
        begin = len(prompt) if echo else 0
        assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
        told = choice.logprobs
        for token, offset in zip(told.tokens, told.text_offset, strict=True):
            assert choice.text[offset:].startswith(token.removeprefix("<s>"))
        spaces += choice.text[begin:].startswith(" ")
    assert spaces


@pytest.mark.parametrize("messages", [MESSAGES, BEGUN])
def test_chats(client, messages: list[dict]):
    on = messages is BEGUN
    extra = EXTRA | ({"continue_final_message": True, "add_generation_prompt": False} if on else {})
    how = dict(model="spaced", messages=messages, max_tokens=8, temperature=1, logprobs=True)
    prompt = ids_of(Chat(messages, continue_final_message=on))
    spaces = 0
    for seed in range(6):
        (choice,) = client.chat.completions.create(**how, seed=seed, extra_body=extra).choices
        chunks = list(client.chat.completions.create(**how, seed=seed, stream=True, extra_body=extra))
        content = choice.message.content
        assert content == added(prompt, told_ids(chunks))
        assert content == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert b"".join(bytes(one.bytes or []) for one in choice.logprobs.content).decode() == content
        spaces += content.startswith(" ")
    assert spaces


def test_forms(client):
    for expected, form in {" ab": {"regex": " ab"}, " é": {"choices": [" é"]}, "ab": {"choices": ["ab"]}}.items():
        completed = client.completions.create(model="spaced", prompt="ab a", max_tokens=8, extra_body=form)
        assert completed.choices[0].text == expected
        chat = client.chat.completions.create(model="spaced", messages=MESSAGES, max_tokens=8, extra_body=form)
        assert chat.choices[0].message.content == expected
