"""Structured output: against a slow reference, with any drafter, in any batch; every answer has its form."""

import dataclasses
import json
import random
import threading

import numpy as np
import pytest
from schemas import random_schema
from speller import DYNAMIC, END, RANDOM, SPELLER, TOKENIZER, asked, next_logits

from eagle_jax import api
from eagle_jax.api import Model, generate
from eagle_jax.structured import automaton_cache as structured
from eagle_jax.structured.byte_automaton import ByteAutomaton
from eagle_jax.structured.json_schema import schema_automaton
from eagle_jax.structured.regex_automaton import regex_automaton
from eagle_jax.text.token_bytes import token_bytes

jsonschema = pytest.importorskip("jsonschema")
STOPPING = dataclasses.replace(RANDOM, stop_ids=(END,))
# with room for whole answers
CONFIG = dataclasses.replace(RANDOM.target.config, max_position_embeddings=400)
LONG = Model(dataclasses.replace(RANDOM.target, config=CONFIG), RANDOM.head, TOKENIZER, stop_ids=(END,), context=400)
PROMPT = "one, two and "
NEW = 30
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yz"]}}, "required": ["b"]}
CASES = {
    "choices": {"choices": ["no", "nobody", "yes"]},
    "regex": {"regex": r"[a-z]{2,5}( [A-Z]+)*\."},
    "schema": {"json_schema": SCHEMA},
    "any object": {"json_schema": {"type": "object"}},
    "schema and penalties": {"json_schema": SCHEMA, "repetition_penalty": 1.3, "logit_bias": {40: 2.0}},
    "a stop token that comes too early": {"choices": ["a", "b"], "min_tokens": 5},
}
OVER_BYTES = {
    "choices": lambda: regex_automaton("no|nobody|yes"),
    "regex": lambda: regex_automaton(r"[a-z]{2,5}( [A-Z]+)*\."),
    "schema": lambda: schema_automaton(json.dumps(SCHEMA)),
}


def reference(automaton: ByteAutomaton) -> list[int]:
    """Greedy decoding one token at a time, of the tokens alone whose bytes the automaton goes on with."""
    spelt, prompt = token_bytes(TOKENIZER, 272), TOKENIZER(PROMPT)["input_ids"]
    text, state = list(prompt), 0
    while len(text) < len(prompt) + NEW:
        logits = next_logits(RANDOM, text)
        after = np.full(272, -1)
        for id_, word in enumerate(spelt):
            after[id_] = state if word else -1
            for byte in word:
                after[id_] = automaton.next[after[id_], byte] if after[id_] >= 0 else -1
        after[END] = state if automaton.final[state] else -1
        text.append(int(np.argmax(np.where(after >= 0, logits, -np.inf))))
        state = int(after[text[-1]])
        if text[-1] == END:
            break
    return text[len(prompt) :]


@pytest.mark.matrix
@pytest.mark.parametrize("name", OVER_BYTES)
def test_as_defined_and_with_any_drafter(name: str):
    expected = reference(OVER_BYTES[name]())
    for drafting in ({"drafter": "none"}, DYNAMIC, {"drafter": "prompt-lookup"}):
        result = generate(STOPPING, PROMPT, max_new_tokens=NEW, **drafting, **CASES[name])
        assert result.token_ids == expected, drafting
    assert expected != generate(STOPPING, PROMPT, max_new_tokens=NEW, drafter="none").token_ids


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_in_which_everyone_asks_for_something_else(temperature: float):
    cases = [{}, *CASES.values()]
    alone = [
        generate(STOPPING, PROMPT, max_new_tokens=NEW, drafter="none", temperature=temperature, seed=i, **options)
        for i, options in enumerate(cases)
    ]
    names = sorted({name for options in cases for name in options})
    columns = {name: [options.get(name) for options in cases] for name in names}
    for drafting in ({"drafter": "none"}, DYNAMIC):
        together = generate(
            STOPPING,
            [PROMPT] * len(cases),
            max_new_tokens=NEW,
            temperature=temperature,
            seed=list(range(len(cases))),
            batch_size=3,
            **drafting,
            **columns,
        )
        assert [result.token_ids for result in together] == [result.token_ids for result in alone]


@pytest.mark.proof
def test_every_answer_to_a_random_schema_is_valid():
    rng, complete, steps, tokens = random.Random(4), 0, 0, 0
    checker = jsonschema.Draft202012Validator
    for seed in range(100):
        schema = random_schema(rng, 4, bounded=True)
        how = {"max_new_tokens": 300, "temperature": float(seed % 2), "seed": seed, "json_schema": schema}
        plain = generate(LONG, PROMPT, drafter="none", **how)
        drafted = generate(LONG, PROMPT, **DYNAMIC, **how)
        assert drafted.token_ids == plain.token_ids
        if plain.finish_reason == "stop":
            complete += 1
            assert checker(schema, format_checker=checker.FORMAT_CHECKER).is_valid(json.loads(plain.text)), plain.text
        steps, tokens = steps + drafted.stats.steps, tokens + len(drafted.token_ids) - 1
    assert complete > 90
    free = [generate(LONG, PROMPT, **DYNAMIC, max_new_tokens=300, temperature=t).stats for t in (0.0, 1.0)]
    assert tokens / steps > max(stats.mean_accepted_length for stats in free), "guesses that cannot come are not made"


def test_the_first_token_and_the_last_one():
    assert generate(SPELLER, asked("?"), choices=["x"], **DYNAMIC).text == "x"
    result = generate(SPELLER, asked("?"), regex="abcd|abce", **DYNAMIC)
    assert (result.text, result.finish_reason, result.token_ids[-1]) == ("abcd", "stop", END)


def test_form_between_texts_one_of_which_is_a_special_token():
    how = {"json_schema": {"enum": [1, 2]}, "form_between": ["go:\n", "\n<|user|>"], **DYNAMIC}
    result = generate(SPELLER, asked("?"), logit_bias={TOKENIZER.convert_tokens_to_ids("<|user|>"): 50}, **how)
    assert result.text in ("go:\n1\n", "go:\n2\n") and result.finish_reason == "stop"
    assert result.token_ids[-2] == TOKENIZER.convert_tokens_to_ids("<|user|>")


@pytest.mark.proof
def test_streams_and_engines():
    expected = {name: generate(STOPPING, PROMPT, max_new_tokens=NEW, **DYNAMIC, **case) for name, case in CASES.items()}
    for name, case in CASES.items():
        *_, last = api.stream(STOPPING, PROMPT, max_new_tokens=NEW, steps=1, **DYNAMIC, **case)
        assert last.result is not None and last.result.token_ids == expected[name].token_ids
    with api.Engine(STOPPING, rows=2, max_tokens=50, tree=(8, 2, 2)) as engine:
        tickets = {name: engine.submit(PROMPT, max_new_tokens=NEW, **case) for name, case in CASES.items()}
        for name, ticket in tickets.items():
            result = ticket.result()
            assert result.token_ids == expected[name].token_ids
            assert result.stats.compile_seconds == 0


def test_an_automaton_is_made_once():
    first, second = (generate(STOPPING, PROMPT, max_new_tokens=3, regex="q[0-9]{7}x") for _ in range(2))
    assert first.stats.structured_seconds > 0 and second.stats.structured_seconds == 0


def test_what_is_kept_is_bounded(monkeypatch):
    cache = structured._AutomatonCache()
    made = structured.make_automaton(structured.Form("regex", "ab"), TOKENIZER, 272, [END])
    monkeypatch.setattr(structured, "CACHE_BYTES", 3 * made.automaton.nbytes)
    for key in range(9):
        cache.get(key, lambda: made.automaton, TOKENIZER, threading.Event())
    assert list(cache._entries) == [6, 7, 8]


HALVES = {"json_schema": {"const": "\ud800"}, "regex": "\udc00", "choices": ["a", "\ud800"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choices": []}, "expected a list of non-empty texts"),
        ({"choices": "yes"}, "expected a list of non-empty texts"),
        ({"choices": ["a"], "regex": "b"}, "both give the form"),
        ({"regex": "("}, "is not supported"),
        ({"regex": 3}, "expected a regular expression"),
        ({"json_schema": "{"}, "not a JSON schema"),
        ({"json_schema": 4}, "json_schema=4; expected a JSON schema: an object"),
        ({"json_schema": {"const": float("nan")}}, "not a JSON schema .*JSON compliant"),
        *[({name: value}, f"{name} has the lone surrogate") for name, value in HALVES.items()],
        ({"json_schema": {"type": "integer", "minimum": 10**400}}, "minimum=1000.*; expected a number between -1e400"),
        ({"regex": r"[^\s\S]"}, "no text matches the regular expression"),
        ({"json_schema": {"$ref": "#"}}, "recursive"),
        ({"form_between": ["a", "b"]}, "go with a form of the answer"),
        ({"json_schema": {}, "form_between": ["a"]}, "expected two texts"),
        ({"json_schema": {}, "form_reasoning": ["a", "\ud800"]}, "form_reasoning has the lone surrogate"),
        ({"regex": "a+", "ignore_eos": True}, "ignore_eos with regex"),
    ],
)
def test_wrong_forms(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        generate(STOPPING, PROMPT, **options)


def test_a_model_that_cannot_end_an_answer():
    with pytest.raises(ValueError, match="needs a stop token"):
        generate(RANDOM, PROMPT, regex="a+")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        generate(dataclasses.replace(STOPPING, tokenizer=None), [1, 2], regex="a+")
