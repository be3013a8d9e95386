"""Completions that begin with their prompt, and what the model thinks of it: as evaluation harnesses ask."""

import numpy as np
import openai
import pytest
from sentencepiece_like import LLAMA2
from served import Served
from speller import DYNAMIC, RANDOM, TOKENIZER, asked

from eagle_jax.api import generate, prompt_logprobs
from eagle_jax.protocols.echo import Echo
from eagle_jax.scheduling.scoring import Scoring
from eagle_jax.text.detokenize import AnswerText, IncrementalDetokenizer, decode

CLOSE = dict(atol=2e-5)
HARNESS = dict(model="random", max_tokens=1, temperature=0, logprobs=1, seed=1234, echo=True)


@pytest.mark.matrix
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_likelihoods_as_evaluation_harnesses_ask_for_them(client, max_tokens: int):
    prompts = [TOKENIZER(text)["input_ids"] for text in ("one, two", "three")]
    answer = client.completions.create(prompt=prompts, **HARNESS | {"max_tokens": max_tokens})
    scored = prompt_logprobs(RANDOM, prompts, top_logprobs=1)
    for choice, prompt, expected in zip(answer.choices, prompts, scored, strict=True):
        told = choice.logprobs
        assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(prompt) + max_tokens
        assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
        np.testing.assert_allclose(told.token_logprobs[1 : len(prompt)], expected.logprobs[1:], **CLOSE)
        # a continuation is greedy where each token's number is the largest in its place
        greedy = [own == max(top.values()) for own, top in list(zip(told.token_logprobs, told.top_logprobs))[1:]]
        assert greedy == [rank == 1 for rank in expected.ranks[1:]] + [True] * max_tokens
        assert "".join(told.tokens[: len(prompt)]) == TOKENIZER.decode(prompt)
        assert choice.text.startswith(TOKENIZER.decode(prompt))
        for token, offset in zip(told.tokens[: len(prompt)], told.text_offset, strict=False):
            assert choice.text[offset:].startswith(token)
        assert choice.finish_reason == "length"
        if max_tokens:
            alone = generate(RANDOM, prompt, max_new_tokens=max_tokens, logprobs=True, **DYNAMIC)
            np.testing.assert_allclose(told.token_logprobs[len(prompt) :], alone.logprobs, **CLOSE)
            assert choice.text == decode(TOKENIZER, prompt + alone.token_ids)
    tokens = sum(map(len, prompts))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens, 2 * max_tokens)


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"logprobs": 0, "n": 2}, {"stop": "g"}, {"max_tokens": 0}])
def test_streams_tell_the_same(client, options: dict):
    how = dict(model="speller", prompt="ab", max_tokens=8, temperature=0, echo=True) | options
    whole = client.completions.create(**how)
    pieces = [[] for _ in whole.choices]
    for chunk in client.completions.create(stream=True, **how):
        pieces[chunk.choices[0].index].append(chunk.choices[0])
    for choice, told in zip(whole.choices, pieces, strict=True):
        assert told[0].text == "ab" and choice.text.startswith("ab")
        assert "".join(piece.text for piece in told) == choice.text
        assert [piece.finish_reason for piece in told] == [None] * (len(told) - 1) + [choice.finish_reason]
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs") if choice.logprobs else ():
            parts = [getattr(piece.logprobs, name) or [] for piece in told if piece.logprobs]
            assert sum(parts, []) == (getattr(choice.logprobs, name) or [])
    if options == {"stop": "g"}:
        assert whole.choices[0].text == "abcdef" and whole.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("answer", ["é😀b", "", "\x82\xac a", "ab", "\x82"])
def test_prompt_and_answer_are_one_text(answer):
    """Also one that goes on within a character, which it completes or does not."""
    parts = [f"<0x{ord(character):02X}>" for character in "\xe2"] if answer != "é😀b" else []
    prompt = LLAMA2("ab a")["input_ids"] + LLAMA2.convert_tokens_to_ids(parts)
    names = [f"<0x{ord(c):02X}>" if 0x80 <= ord(c) < 0xC0 else c.replace(" ", "▁") for c in answer]
    ids = LLAMA2.convert_tokens_to_ids(names) if parts else LLAMA2(answer, add_special_tokens=False)["input_ids"]
    echo, text = Echo(LLAMA2, prompt), AnswerText(LLAMA2, prompt, ())
    told, detokenizer = echo.prompt(), IncrementalDetokenizer(LLAMA2, prompt)
    assert told == "ab a"
    for id_ in ids:
        told += echo.add([id_], detokenizer.add(id_), is_last=False)
    told += echo.add([], detokenizer.rest, is_last=True)
    text.read(ids)
    assert told == decode(LLAMA2, prompt + ids) and told.endswith(text.text)


def test_prompt_logprobs_as_vllm_has_them(client):
    extra = {"prompt_logprobs": 2}
    prompt = TOKENIZER("one")["input_ids"]
    expected = prompt_logprobs(RANDOM, prompt, top_logprobs=2)
    told = client.completions.create(model="random", prompt=prompt, max_tokens=2, extra_body=extra).choices[0]
    assert told.prompt_logprobs[0] is None and told.logprobs is None
    for place, token in enumerate(prompt[1:], start=1):
        entries = told.prompt_logprobs[place]
        own = entries[str(token)]
        assert own["logprob"] == pytest.approx(expected.logprobs[place], abs=2e-5)
        assert own["rank"] == expected.ranks[place] and own["decoded_token"] == TOKENIZER.decode([token])
        assert [entries[str(id_)]["rank"] for id_, _ in expected.top_logprobs[place]] == [1, 2]
        assert len(entries) == 2 + (own["rank"] > 2)
    chat = client.chat.completions.create(model="random", messages=asked("?"), max_tokens=1, extra_body=extra)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_tokens": 0}, "max_tokens=0; expected a whole number from 1"),
        ({"echo": "yes"}, 'echo="yes"; expected true or false'),
        ({"prompt_logprobs": 21}, "prompt_logprobs=21; expected a whole number from 0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs with stream=true"),
        ({"echo": True, "logprobs": 1, "max_tokens": 0, "prompt": [1] * 49}, "the prompt has 49 tokens; there is room"),
    ],
)
def test_what_is_refused(client, options: dict, message: str):
    how = dict(model="random", prompt="a") | {"extra_body": options}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**how)
    assert message in caught.value.body["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_at_a_prompt(client, served: Served, monkeypatch, stream: bool):
    monkeypatch.setattr(Scoring, "read", lambda *_: 1 / 0)
    with pytest.raises(openai.APIError, match="failed at this prompt"):
        list(client.completions.create(prompt="a", stream=stream, **HARNESS))
    monkeypatch.undo()
    assert client.completions.create(prompt="a", **HARNESS).choices[0].text
