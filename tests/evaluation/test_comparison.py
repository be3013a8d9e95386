"""The run's bookkeeping, with a model that echoes; its real speed is tested where a real pair is."""

import types

import jax
import jax.numpy as jnp
import pytest

from eagle_jax import api
from eagle_jax.evaluation import EAGLE, PLAIN, Method, Prompter, Question, compare, comparison, too_long
from eagle_jax.evaluation.comparison import first_prompt

BOTH = (PLAIN, EAGLE)


class Tokenizer:
    """One token per word, and one in front."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *range(len(text.split()))]}


@pytest.fixture
def calls(monkeypatch):
    """Replaces generation: an answer's text tells the prompt's length; every call is written down."""
    calls = []

    def generate(model, prompt, *, max_new_tokens, drafter, **request):
        calls.append((drafter, prompt, request))
        lengths = [1, 1, 1] if drafter == "none" else [3]
        stats = api.Stats(
            steps=len(lengths),
            mean_accepted_length=3 / len(lengths),
            accepted_by_depth=[],
            accepted_lengths=lengths,
            structured_seconds=0.0,
            compile_seconds=0.0,
            prefill_seconds=0.005,
            first_token_seconds=0.01,
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
    monkeypatch.setattr("eagle_jax.evaluation.prompts.encode", encode)
    return calls


@pytest.fixture
def prompter():
    def make(max_new_tokens: int = 2, context: int = 12, **options) -> Prompter:
        model = object.__new__(api.Model)
        config = types.SimpleNamespace(vocab_size=9)
        fields = dict(context=context, tokenizer=Tokenizer(), target=types.SimpleNamespace(config=config))
        for name, value in fields.items():
            object.__setattr__(model, name, value)
        return Prompter(model, chat=options.pop("chat", True), max_new_tokens=max_new_tokens, **options)

    return make


def test_every_method_has_each_conversation_and_the_first_one_changes(calls, prompter):
    questions = [Question(1, "a", ("one", "two")), Question(2, "b", ("three",))]
    done = []
    tree = Method("eagle:9,3,2", "eagle", (9, 3, 2))
    talks = list(compare(prompter(), questions, (PLAIN, tree), seed=3, progress=lambda *pair: done.append(pair)))
    assert [(talk.method, talk.id) for talk in talks] == [
        ("plain", 1), ("eagle:9,3,2", 1), ("eagle:9,3,2", 2), ("plain", 2)
    ]  # fmt: skip
    assert [drafter for drafter, _, _ in calls] == ["none", "none", "eagle", "eagle", "eagle", "none"]
    assert len(calls[1][1]) == len("one answer 1 two".split())
    assert calls[2][2] == {"tree": (9, 3, 2), "seed": 3} and calls[0][2] == {"tree": "auto", "seed": 3}
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    first = talks[1].answers[0]
    assert (talks[1].category, len(talks[1].answers), first.accepted_lengths, first.steps) == ("a", 2, (3,), 1)
    assert first.prompt_ids == (0,) and first.prompt_cut == 0 and first.text == "answer 1" and first.retokenized == 3
    assert first.seconds > 0 and (first.prefill_seconds, first.decode_seconds) == (0.01, 0.1)


def test_of_repeats_the_quickest_conversation_counts_and_methods_take_turns(calls, prompter, monkeypatch):
    # two turns each of plain and EAGLE, three times, and of plain again for a question that EAGLE has answered
    durations = iter([5, 1, 1, 1, 3, 2, 2, 2, 1, 9, 9, 9, 4, 4, 4, 3, 4, 4])
    readings = (reading for duration in durations for reading in (0.0, float(duration)))
    monkeypatch.setattr(comparison, "time", types.SimpleNamespace(perf_counter=lambda: next(readings)))
    done, questions = [], [Question(number, "a", ("one", "two")) for number in (1, 2)]
    asked = dict(repeats=3, answered={("eagle", 2)}, progress=lambda *pair: done.append(pair))
    talks = compare(prompter(context=20), questions, BOTH, **asked)
    assert [(talk.method, talk.id, [answer.seconds for answer in talk.answers]) for talk in talks] == [
        ("plain", 1, [3.0, 2.0]), ("eagle", 1, [1.0, 1.0]), ("plain", 2, [4.0, 3.0])
    ]  # fmt: skip
    assert [drafter for drafter, _, _ in calls] == ["none", "none", "eagle", "eagle"] * 3 + ["none"] * 6
    assert done == [(number, 12) for number in range(1, 13)]


def test_what_is_answered_is_not_asked_again(calls, prompter):
    questions = [Question(1, "a", ("one",)), Question(2, "a", ("two",))]
    there = {("plain", 1), ("eagle", 2)}
    assert [(talk.method, talk.id) for talk in compare(prompter(), questions, BOTH, answered=there)] == [
        ("eagle", 1), ("plain", 2)
    ]  # fmt: skip


def test_a_method_may_bring_its_model(calls, prompter, monkeypatch):
    other, asked = prompter().model, []
    generate = api.generate
    monkeypatch.setattr(
        api, "generate", lambda model, *args, **kwargs: (asked.append(model), generate(model, *args, **kwargs))[1]
    )
    list(compare(prompter(), [Question(1, "a", ("one",))], (Method("medusa", "medusa", model=other),)))
    assert asked[-1] is other


def test_raw_prompts_are_plain_text(calls, prompter):
    list(compare(prompter(chat=False), [Question(1, "a", ("one", "two"))], BOTH))
    assert len(calls[-1][1]) == len("one\nanswer 1\ntwo".split())


def test_what_does_not_fit_is_skipped_or_shortened_or_cut(calls, prompter):
    long = "word " * 10
    questions = [Question(1, "a", (long,)), Question(2, "a", ("short", long)), Question(3, "a", ("short",))]
    asks = prompter(max_new_tokens=3)
    assert too_long(asks, questions) == [1] and len(first_prompt(asks, questions).ids) == 1
    assert {talk.id: len(talk.answers) for talk in compare(asks, questions, BOTH)} == {2: 1, 3: 1}
    cut = {talk.id: talk.answers for talk in compare(prompter(max_new_tokens=3, cut=True), questions, BOTH)}
    assert len(cut[2]) == 2 and cut[1][0].prompt_cut > 0 and len(cut[1][0].prompt_ids) == 9


def test_a_request_that_compiled_is_repeated(calls, prompter, monkeypatch):
    program = jax.jit(lambda x: x * 5 + 2)
    generate = api.generate

    def compiling(*args, **kwargs):
        program(jnp.arange(11))
        return generate(*args, **kwargs)

    monkeypatch.setattr(api, "generate", compiling)
    list(compare(prompter(), [Question(1, "a", ("one",))], BOTH))
    assert [drafter for drafter, _, _ in calls] == ["none", "none", "eagle"]
