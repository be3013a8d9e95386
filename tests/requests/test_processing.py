"""Penalties, bias, bans and stop tokens of requests: against a slow reference, with any drafter, in any batch."""

import collections

import numpy as np
import pytest
from speller import DYNAMIC, END, RANDOM, SCRIPT, SPELLER, TOKENIZER, asked, next_logits

from eagle_jax import api
from eagle_jax.api import generate
from eagle_jax.requests.processing import LogitsOptions, Processing, bad_word_ids, check_processing
from eagle_jax.scheduling.logits_arrays import processor_of

PROMPT = "one, two and "
NEW = 30
PLAIN = generate(RANDOM, PROMPT, max_new_tokens=NEW, drafter="none").token_ids
COMMON = collections.Counter(PLAIN).most_common(1)[0][0]


def reference(prompt: list[int], new: int, stops: tuple[int, ...] = (), **options) -> list[int]:
    """Greedy decoding, one token at a time, as the definitions of the options read."""
    asked_for = LogitsOptions(**check_processing(options))
    words = bad_word_ids(asked_for.bad_words, TOKENIZER, 272)
    text = list(prompt)
    while len(text) < len(prompt) + new:
        logits = next_logits(RANDOM, text).astype(np.float64)
        answer = text[len(prompt) :]
        for id_, bias in asked_for.logit_bias:
            logits[id_] += bias
        for id_ in set(text):
            penalty = asked_for.repetition_penalty
            logits[id_] = logits[id_] / penalty if logits[id_] > 0 else logits[id_] * penalty
        for id_, count in collections.Counter(answer).items():
            logits[id_] -= asked_for.frequency_penalty * count + asked_for.presence_penalty
        for word in words:
            if len(text) >= len(word) - 1 and text[len(text) - len(word) + 1 :] == list(word[:-1]):
                logits[word[-1]] = -np.inf
        if len(answer) < asked_for.min_tokens:
            logits[list((*stops, *asked_for.stop_token_ids))] = -np.inf
        if asked_for.allowed_token_ids is not None:
            logits[[id_ for id_ in range(len(logits)) if id_ not in asked_for.allowed_token_ids]] = -np.inf
        text.append(int(np.argmax(logits)))
        if text[-1] in (*stops, *asked_for.stop_token_ids):
            break
    return text[len(prompt) :]


CASES: dict[str, Processing] = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "negative": {"presence_penalty": -1.0, "frequency_penalty": -0.5, "repetition_penalty": 0.9},
    "bias": {"logit_bias": {COMMON: -100.0, 40: 1.5}},
    "stop token": {"stop_token_ids": [COMMON]},
    "stop token, but not so early": {"stop_token_ids": [COMMON], "min_tokens": 9},
    "allowed": {"allowed_token_ids": list(range(97, 110))},
    "bad word of one token": {"bad_words": ["th"]},
    "all at once": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {40: 2.0},
        "min_tokens": 4,
        "stop_token_ids": [COMMON],
    },
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_as_defined_and_with_any_drafter(name: str):
    options = CASES[name]
    prompt = TOKENIZER(PROMPT)["input_ids"]
    expected = reference(prompt, NEW, **options)
    assert name in ("bad word of one token",) or expected != PLAIN, "the option changes nothing here"
    for drafting in ({"drafter": "none"}, DYNAMIC, {"drafter": "prompt-lookup"}):
        result = generate(RANDOM, PROMPT, max_new_tokens=NEW, **drafting, **options)
        assert result.token_ids == expected, drafting
        assert result.finish_reason == ("stop" if len(expected) < NEW else "length")


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_in_which_everyone_asks_for_something_else(temperature: float):
    alone = [
        generate(RANDOM, PROMPT, max_new_tokens=NEW, drafter="none", temperature=temperature, seed=i, **options)
        for i, options in enumerate(CASES.values())
    ]
    names = sorted({name for options in CASES.values() for name in options})
    columns = {name: [options.get(name) for options in CASES.values()] for name in names}
    for drafting in ({"drafter": "none"}, DYNAMIC):
        together = generate(
            RANDOM,
            [PROMPT] * len(CASES),
            max_new_tokens=NEW,
            temperature=temperature,
            seed=list(range(len(CASES))),
            batch_size=4,
            **drafting,
            **columns,
        )
        assert [result.token_ids for result in together] == [result.token_ids for result in alone]


@pytest.mark.parametrize("drafting", [{"drafter": "none"}, DYNAMIC])
def test_where_all_that_is_allowed_is_banned_an_allowed_token_comes(drafting: dict):
    [first, second] = allowed = [TOKENIZER(letter)["input_ids"][0] for letter in "xy"]
    result = generate(RANDOM, PROMPT, max_new_tokens=8, allowed_token_ids=allowed, bad_words=["x", "y"], **drafting)
    assert set(result.token_ids) <= {first, second}


def test_a_bad_word_beyond_the_vocabulary_bans_nothing():
    [x] = TOKENIZER("x")["input_ids"]
    assert (x,) in bad_word_ids(["x"], TOKENIZER, x + 1)
    assert bad_word_ids(["x"], TOKENIZER, x) == ()


def test_words_of_several_tokens_are_banned_where_they_would_be_completed():
    assert generate(SPELLER, asked("?"), **DYNAMIC).token_ids == SCRIPT
    for drafting in ({"drafter": "none"}, DYNAMIC):
        result = generate(SPELLER, asked("?"), max_new_tokens=12, bad_words=["bcd", "xcdef"], **drafting)
        assert result.text.startswith("abc") and "bcd" not in result.text
    assert generate(SPELLER, "ab", max_new_tokens=3, bad_words=["abc"], **DYNAMIC).text != "cde", "prompts count too"


def test_the_models_own_stop_tokens():
    assert generate(SPELLER, asked("?"), **DYNAMIC).finish_reason == "stop"
    going_on = generate(SPELLER, asked("?"), ignore_eos=True, max_new_tokens=len(SCRIPT) + 3, **DYNAMIC)
    assert going_on.token_ids[: len(SCRIPT)] == SCRIPT and len(going_on.token_ids) == len(SCRIPT) + 3
    longer = generate(SPELLER, asked("?"), min_tokens=len(SCRIPT) + 2, max_new_tokens=len(SCRIPT) + 3, **DYNAMIC)
    assert longer.token_ids[: len(SCRIPT) - 1] == SCRIPT[:-1] and END not in longer.token_ids[: len(SCRIPT) + 2]


def test_a_request_that_asks_for_nothing_gets_no_processor():
    nothing = LogitsOptions(stop_token_ids=(3,), ignore_eos=True), (), None
    assert processor_of([nothing, nothing], 16) is None
    assert processor_of([nothing, (LogitsOptions(min_tokens=1), (), None)], 16) is not None


def test_an_engine_takes_them_beside_others_without_compiling():
    with api.Engine(RANDOM, rows=2, max_tokens=50, tree=(8, 2, 2)) as engine:
        tickets = [engine.submit(PROMPT, max_new_tokens=NEW, **options) for options in CASES.values()]
        results = [ticket.result() for ticket in tickets]
        with pytest.raises(ValueError, match="room for 8 in addition"):
            engine.submit(PROMPT, max_new_tokens=NEW, stop_token_ids=list(range(9)))
    prompt = TOKENIZER(PROMPT)["input_ids"]
    for (name, options), result in zip(CASES.items(), results, strict=True):
        assert result.token_ids == reference(prompt, NEW, **options), name
        assert result.stats.compile_seconds == 0, name


def test_a_stream_is_the_same_text():
    for options in CASES.values():
        expected = generate(RANDOM, PROMPT, max_new_tokens=NEW, **DYNAMIC, **options)
        *_, last = api.stream(RANDOM, PROMPT, max_new_tokens=NEW, steps=1, **DYNAMIC, **options)
        assert last.result is not None and last.result.token_ids == expected.token_ids


def test_the_options_and_their_types_have_the_same_names():
    assert set(Processing.__annotations__) == set(LogitsOptions.__dataclass_fields__)
