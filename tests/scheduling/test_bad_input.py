"""A wrong call gets one clear sentence, and nothing runs."""

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from speller import DYNAMIC, RANDOM, SPELLER, TOKENIZER, asked

from eagle_jax.scheduling import programs

NO_TEMPLATE = dataclasses.replace(RANDOM, tokenizer=TOKENIZER.__class__(tokenizer_object=TOKENIZER.backend_tokenizer))
MUTE = dataclasses.replace(RANDOM, tokenizer=None)
HEADLESS = dataclasses.replace(RANDOM, head=None)

PROMPTS: list[tuple[Any, str]] = [
    ("", "the prompt is empty; give it at least one token"),
    ([], "no prompts: the list is empty"),
    (np.array([], int), "no prompts: the list is empty"),
    ([[]], "the prompt is empty"),
    (["a", ""], "prompt 1 is empty"),
    (None, "prompts of type NoneType; expected a string, a list of chat messages, a list of token ids, or a list"),
    (5, "prompts of type int"),
    (np.array(5), "prompts of type int"),
    (b"bytes", "prompts of type bytes"),
    ([b"bytes"], "the prompt is neither text, nor chat messages, nor token ids: b'bytes'"),
    ({"role": "user", "content": "?"}, "prompts of type dict"),
    (["a", None], "prompt 1 is neither text, nor chat messages, nor token ids: None"),
    (["a", asked("?")[0]], "prompt 1 is neither text"),
    ([True, False], "prompt 0 is neither text"),
    ([1, 2.5], "prompt 0 is neither text"),
    (np.array([0.5, 1.0]), "prompt 0 is neither text"),
    ([[1, [2]]], "the prompt is neither text"),
    ([{"role": "user"}], 'the prompt has the message {\'role\': \'user\'}; expected {"role": "user", "content"'),
    ([{"role": "user", "content": None}], "the prompt has the message"),
    ([{"role": "assistant", "content": None, "tool_calls": [7]}], "the prompt has a call without a function"),
    (
        [{"role": "user", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}],
        "the prompt has a call whose arguments are not JSON",
    ),
    ([{"role": "user", "content": ["a"]}], r"messages\[0\].content\[0\]=.a.; expected an object"),
    ([{"text": "?"}], "the prompt has the message"),
    (
        [{"role": "system", "content": "?"}],
        "the prompt does not fit the model's chat template: Only user and assistant",
    ),
    ([0, 272], "the prompt holds token id 272; the model's vocabulary is 0 to 271"),
    ([[0], [-1]], "prompt 1 holds token id -1"),
    ("half \ud83d", "the prompt has the lone surrogate '\\\\ud83d'"),
    (asked("half \ud83d"), "the prompt has the lone surrogate '\\\\ud83d'"),
    (list(range(56)), "the prompt has 56 tokens; the model's context is 56, so it can have at most 55"),
    (["a", "a" * 100], "prompt 1 has 100 tokens"),
]
OPTIONS: list[tuple[dict[str, Any], str]] = [
    *[
        ({"max_new_tokens": n}, "max_new_tokens=.*; expected a whole number, 1 or more")
        for n in (0, -1, 1.5, "8", True)
    ],
    ({"max_new_tokens": None}, "max_new_tokens=None; expected a whole number"),
    ({"temperature": -0.1}, "temperature=-0.1 is negative; 0 is greedy"),
    *[
        ({"temperature": t}, "temperature=.*; expected a finite number")
        for t in (math.nan, math.inf, 10**400, "0.5", None, True)
    ],
    *[({"top_p": p}, r"top_p=.* is outside \(0, 1\]") for p in (0, 0.0, 1.1, -1)],
    ({"top_p": math.nan}, "top_p=nan; expected a finite number"),
    *[({"min_p": p}, r"min_p=.* is outside \[0, 1\]") for p in (-0.1, 1.1)],
    ({"min_p": math.nan}, "min_p=nan; expected a finite number"),
    *[({"top_k": k}, "top_k=.*; expected a whole number, 0 or more") for k in (-1, 2.0, "3", True)],
    *[
        ({"seed": s}, r"seed=.*; expected a whole number from 0 to 2\*\*63 - 1")
        for s in (-1, 2**63, 0.5, "1", None, True)
    ],
    ({"seed": [1.5]}, "seed=1.5; expected a whole number"),
    ({"seed": [1, 2]}, "2 values of seed for 1 prompts; give one for all of them, or one each"),
    ({"seed": []}, "0 values of seed for 1 prompts"),
    *[
        ({"stop": s}, "stop string .*; expected text of at least one character")
        for s in ("", [""], ["a", ""], [5], [None])
    ],
    *[({"stop": s}, "stop=.*; expected text, or a list of texts") for s in (5, b"a", {"a": 1})],
    *[({"drafter": d}, "drafter=.* is not known; expected") for d in ("oracle", None, 5, ["eagle"])],
    *[({"logprobs": x}, "logprobs=.*; expected True or False") for x in ("no", None, 3)],
    *[
        ({"tree": t}, "tree=.* is not a tree; expected")
        for t in ("eagle3", "", None, 60, (), [], (60, 7), (60, 7, 10, 59, 1))
    ],
    *[
        ({"tree": t}, "tree=.* is not a tree; expected")
        for t in ((60, 7.5, 10), ("60", 7, 10), [[-1, 0]], {-1: 0}, True)
    ],
    ({"tree": (1, 7, 10)}, "a dynamic tree of 1 nodes; expected at least 2"),
    ({"tree": (60, -1, 10)}, "a dynamic tree with -1 expansions"),
    ({"tree": (60, 7, 0)}, "a dynamic tree with top_k = 0"),
    ({"tree": (60, 1, 3)}, "a dynamic tree of 60 nodes, but 1 expansions with top_k 3 find only 12"),
    ({"tree": [-1, 2, 1]}, r"parents\[1\] is 2, expected an index from 0 to 0"),
    ({"tree": [-1, -1]}, r"parents\[1\] is -1, expected an index"),
    ({"tree": [-1, 0, 5]}, r"parents\[2\] is 5, expected an index from 0 to 1"),
    ({"tree": (280, 1, 273)}, "the tree asks for the 273 best tokens below a node, but the vocabulary has 272"),
    ({"tree": [-1, *[0] * 273]}, "the tree asks for the 273 best tokens below a node"),
    ({"drafter": "none", "tree": "oak"}, "tree='oak' is not a tree"),
    *[({"repetition_penalty": n}, "repetition_penalty=.*; expected a number from 0.01 to 100") for n in (0, 1e-9, 101)],
    ({"presence_penalty": 3}, "presence_penalty=3; expected a number from -2 to 2"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty=nan; expected a finite number"),
    ({"logit_bias": {"a": 1}}, "logit_bias has the key 'a'; expected a token id"),
    ({"logit_bias": {1: 101}}, r"logit_bias\[1\]=101.0; expected a number from -100 to 100"),
    ({"logit_bias": {"1": 1, 1: 2}}, "logit_bias has the token id 1 twice; expected each once"),
    ({"logit_bias": 3}, "logit_bias=3; expected a mapping of token ids to numbers"),
    ({"logit_bias": {999: 1}}, "logit_bias has the token id 999; the model's vocabulary ends at 271"),
    ({"min_tokens": -1}, "min_tokens=-1; expected a whole number, 0 or more"),
    ({"ignore_eos": 1}, "ignore_eos=1; expected True or False"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids has 'a'; expected token ids"),
    ({"stop_token_ids": "ab"}, "stop_token_ids='ab'; expected a list of token ids"),
    ({"stop_token_ids": {1: 2}}, "stop_token_ids={1: 2}; expected a list of token ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
    ({"bad_words": [""]}, "bad_words=.*; expected a list of texts that are not blank"),
    ({"repeat_penalty": 1.1}, "there is no option 'repeat_penalty'"),
]
ONLY_GENERATE: list[tuple[dict[str, Any], str]] = [
    *[({"num_samples": n}, "num_samples=.*; expected a whole number, 1 or more") for n in (0, -1, 1.5, True)],
    ({"progress": 3}, "progress=3 cannot be called; expected a function"),
    *[({"batch_size": n}, "batch_size=.*; expected a whole number, 1 or more") for n in (0, -1, 1.5, True)],
]


def names(cases: list[tuple[Any, str]]) -> list[str]:
    return [str(case)[:40] for case, _ in cases]


def refuses(call: Callable[[], Any], message: str) -> None:
    """`call` raises one sentence, and comes to no program of the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "call", lambda *args, **fixed: pytest.fail("something ran"))
        with pytest.raises((ValueError, TypeError), match=f"^{message}") as caught:
            call()
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 300 and not sentence.endswith(".")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("prompts, message", PROMPTS, ids=names(PROMPTS))
def test_prompts(api: ModuleType, prompts, message):
    refuses(lambda: api.generate(RANDOM, prompts, **DYNAMIC), message)
    refuses(lambda: api.stream(RANDOM, prompts, **DYNAMIC), message)


@pytest.mark.parametrize("options, message", OPTIONS, ids=names(OPTIONS))
def test_options(api: ModuleType, options, message):
    refuses(lambda: api.generate(RANDOM, "a", **(DYNAMIC | options)), message)
    refuses(lambda: api.stream(RANDOM, "a", **(DYNAMIC | options)), message)


@pytest.mark.parametrize("options, message", ONLY_GENERATE, ids=names(ONLY_GENERATE))
def test_options_of_generate(api: ModuleType, options, message):
    refuses(lambda: api.generate(RANDOM, "a", **DYNAMIC, **options), message)


@pytest.mark.parametrize("steps", [0, -1, 1.5, "1", None, True])
def test_cycles_of_a_stream(api: ModuleType, steps):
    refuses(lambda: api.stream(RANDOM, "a", steps=steps, **DYNAMIC), "steps=.*; expected a whole number, 1 or more")


def test_what_the_model_lacks(api: ModuleType):
    refuses(
        lambda: api.generate(HEADLESS, "a", drafter="eagle"),
        'drafter="eagle" needs an EAGLE head, and the model has none; load it with head=',
    )
    refuses(lambda: api.generate(MUTE, "a"), "the prompt is text, but the model's folder has no tokenizer")
    refuses(lambda: api.generate(MUTE, asked("?")), "the prompt is text, but the model's folder has no tokenizer")
    refuses(lambda: api.generate(MUTE, [1], stop="a"), "stop strings need a tokenizer")
    refuses(
        lambda: api.generate(NO_TEMPLATE, asked("?")), "the prompt is a chat, but the model's tokenizer has no chat"
    )


def test_a_bad_prompt_among_good_ones_spoils_the_call(api: ModuleType):
    told: list[Any] = []
    with pytest.raises(ValueError, match="^prompt 2 is empty"):
        api.generate(SPELLER, ["a", "b", ""], batch_size=1, progress=lambda *counts: told.append(counts), **DYNAMIC)
    assert told == []


def test_numbers_of_any_make(api: ModuleType):
    """What a person computes with numpy, and whole numbers for fractions, are as good as Python's own."""
    drawn: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1, "top_k": 40, "seed": 3}
    own = api.generate(RANDOM, "ab", **drawn, **DYNAMIC)
    other = api.generate(
        RANDOM,
        np.array(TOKENIZER("ab")["input_ids"], np.uint8),
        max_new_tokens=np.int64(8),
        temperature=np.float32(1),
        top_k=np.uint16(40),
        top_p=1,
        min_p=np.float64(0),
        seed=np.array([3]),
        stop=[],
        logprobs=np.False_,
        tree=np.array([8, 2, 2]),
        num_samples=np.int32(1),
        batch_size=np.int64(1),
    )
    assert other.token_ids == own.token_ids
    assert type(other.token_ids[0]) is int and type(other.finish_reason) is str
    [same] = api.generate(RANDOM, ["ab"], **drawn | {"top_k": 2**40, "seed": [np.int64(3)]}, **DYNAMIC)
    assert len(same.token_ids) == 8
    assert api.generate(RANDOM, "ab", **drawn, tree=(8, np.int64(2), 2)).token_ids == own.token_ids
    last = list(api.stream(RANDOM, "ab", **drawn, steps=np.int64(2), tree=[8, 2, 2]))[-1]
    assert last.result is not None and last.result.token_ids == own.token_ids


def test_headless_models_decode_plainly(api: ModuleType):
    assert api.generate(HEADLESS, "ab", max_new_tokens=4).stats.mean_accepted_length == 1.0
