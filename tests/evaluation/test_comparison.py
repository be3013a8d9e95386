"""The comparison's bookkeeping, with a model that echoes; its real speed is tested where a real pair is."""

import types

import jax
import jax.numpy as jnp
import pytest

from eagle_jax import api
from eagle_jax.evaluation import Answer, Question, Record, compare


@pytest.fixture
def calls(monkeypatch):
    """Replaces generation: an answer's ids are the prompt's length; one token per word; every call is written down."""
    calls = []

    def generate(model, prompt, *, max_new_tokens, drafter, **request):
        calls.append((drafter, prompt, request))
        passes = 4 if drafter == "none" else 1
        stats = api.Stats(
            cycles=passes,
            mean_accepted_length=4 / passes,
            accepted_lengths=[],
            accepted_by_depth=[],
            compile_seconds=0.0,
            prefill_seconds=0.0,
            decode_seconds=0.1,
            tokens_per_second=1.0,
        )
        return api.Result(
            text=f"answer {len(prompt)}",
            token_ids=[len(prompt)] * 4,
            finish_reason="stop",
            logprobs=None,
            prompt_tokens=1,
            stats=stats,
        )

    def encode(tokenizer, prompt, vocab_size, where):
        text = prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)
        return list(range(len(text.split())))

    monkeypatch.setattr(api, "generate", generate)
    monkeypatch.setattr("eagle_jax.evaluation.comparison.encode", encode)
    return calls


@pytest.fixture
def model():
    model = object.__new__(api.Model)
    config = types.SimpleNamespace(vocab_size=9)
    for name, value in dict(context=12, tokenizer=None, target=types.SimpleNamespace(config=config)).items():
        object.__setattr__(model, name, value)
    return model


def test_every_turn_is_asked_under_both_methods_in_changing_order(calls, model):
    questions = [Question(1, "a", ("one", "two")), Question(2, "a", ("three",))]
    done = []
    comparison = compare(model, questions, max_new_tokens=2, seed=3, progress=lambda *pair: done.append(pair))
    assert [drafter for drafter, _, _ in calls] == ["none", "eagle", "none", "eagle", "eagle", "none"]
    assert calls[2][1] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "two"},
    ]
    assert calls[1][2] == {"tree": "auto", "seed": 3} and calls[0][2] == {"seed": 3}
    assert done == [(1, 2), (2, 2)]
    first, second = comparison.records
    assert [answer.passes for answer in first.eagle] == [1, 1] and first.identical == 2 and len(second.plain) == 1
    assert comparison.skipped == comparison.shortened == ()


def test_where_texts_part():
    def answers(*texts: tuple[int, ...]) -> tuple[Answer, ...]:
        cost = dict(text="", passes=1, mean_accepted_length=1.0, seconds=1.0, decode_seconds=1.0)
        return tuple(Answer(token_ids=ids, **cost) for ids in texts)

    question = Question(1, "a", ("one", "two"))
    same = answers((1, 2), (3, 4, 5))
    assert Record(question, same, same).divergence is None
    assert Record(question, same, answers((1, 2), (3, 4, 6))).divergence == (1, 2)
    assert Record(question, same, answers((1,), (3, 4, 6))).divergence == (0, 1)


def test_raw_prompts_are_plain_text(calls, model):
    compare(model, [Question(1, "a", ("one", "two"))], max_new_tokens=2, chat=False)
    assert calls[-1][1] == "one\nanswer 3\ntwo"


def test_what_does_not_fit_is_skipped_or_shortened(calls, model):
    long = "word " * 10
    questions = [Question(1, "a", (long,)), Question(2, "a", ("short", long)), Question(3, "a", ("short",))]
    comparison = compare(model, questions, max_new_tokens=3)
    assert comparison.skipped == (1,) and comparison.shortened == (2,)
    assert [record.question.id for record in comparison.records] == [2, 3]
    assert len(comparison.records[0].plain) == len(comparison.records[0].eagle) == 1


def test_a_request_that_compiled_is_repeated(calls, model, monkeypatch):
    program = jax.jit(lambda x: x * 5 + 2)
    generate = api.generate

    def compiling(*args, **kwargs):
        program(jnp.arange(11))
        return generate(*args, **kwargs)

    monkeypatch.setattr(api, "generate", compiling)
    compare(model, [Question(1, "a", ("one",))], max_new_tokens=2)
    assert [drafter for drafter, _, _ in calls] == ["none", "none", "eagle"]
