"""Log-probabilities of prompts: those that plain decoding reports, whole, in parts, and beside running answers."""

import dataclasses
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from speller import DYNAMIC, RANDOM, TOKENIZER

import eagle_jax
from eagle_jax.api import Engine, EngineClosed, EngineError, QueueFull, generate, prompt_logprobs
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.scheduling import scoring
from eagle_jax.scheduling.scoring import Scoring, requests_to_score
from eagle_jax.sharding import sharding_of
from eagle_jax.testing import TINY, synthetic_pair

PROMPT = TOKENIZER("one, two")["input_ids"]
ROOM = dict(rows=2, max_tokens=48, steps=2, max_queue=4, **DYNAMIC)
CLOSE = dict(atol=2e-5)


def assert_equal(one, other):
    """The same text, scored alike."""
    assert (one.token_ids, one.ranks) == (other.token_ids, other.ranks)
    np.testing.assert_allclose(one.logprobs[1:], other.logprobs[1:], **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_those_that_decoding_reports(temperature):
    answer = generate(
        RANDOM, PROMPT, max_new_tokens=30, temperature=temperature, seed=3, top_logprobs=3, drafter="none"
    )
    scored = prompt_logprobs(RANDOM, [*PROMPT, *answer.token_ids], top_logprobs=3)
    assert scored.token_ids == [*PROMPT, *answer.token_ids]
    assert (scored.logprobs[0], scored.ranks[0], scored.top_logprobs[0]) == (None, None, None)
    np.testing.assert_allclose(scored.logprobs[len(PROMPT) :], answer.logprobs, **CLOSE)
    for mine, theirs in zip(scored.top_logprobs[len(PROMPT) :], answer.top_logprobs, strict=True):
        assert [id_ for id_, _ in mine] == [id_ for id_, _ in theirs]
        np.testing.assert_allclose([p for _, p in mine], [p for _, p in theirs], **CLOSE)
    if temperature == 0:
        assert set(scored.ranks[len(PROMPT) :]) == {1}


def test_a_token_among_the_likeliest_has_the_same_number():
    scored = prompt_logprobs(RANDOM, list(range(50)), top_logprobs=20)
    for token, logprob, rank, top in list(zip(scored.token_ids, scored.logprobs, scored.ranks, scored.top_logprobs))[
        1:
    ]:
        assert dict(top).get(token, logprob) == logprob
        assert (token in dict(top)) == (rank <= 20) and (rank > 1 or top[0][0] == token)


def test_long_prompts_chunk_by_chunk(monkeypatch):
    target, head = synthetic_pair(dataclasses.replace(TINY, max_position_embeddings=400), strength=0.6)
    model = eagle_jax.Model(target, head, None, stop_ids=(), context=400)
    drawn = np.random.default_rng(0).integers(0, TINY.vocab_size, 300).tolist()
    prompts = [drawn[:length] for length in (300, 1, 64, 65)]
    scored = prompt_logprobs(model, prompts)
    monkeypatch.setattr(scoring, "chunk_tokens", lambda: 128)
    for one, other, prompt in zip(scored, prompt_logprobs(model, prompts), prompts, strict=True):
        assert_equal(one, other)
        assert one.token_ids == prompt and len(one.logprobs) == len(prompt) and one.top_logprobs is None
    _, logits = target(jnp.asarray([drawn]))
    expected = np.take_along_axis(np.asarray(logits)[0, :-1], np.asarray(drawn)[1:, None], axis=1)[:, 0]
    expected -= np.log(np.exp(np.asarray(logits, np.float64)[0, :-1]).sum(-1))
    np.testing.assert_allclose(scored[0].logprobs[1:], expected, **CLOSE)


@pytest.mark.matrix
@pytest.mark.parametrize("mesh", ["data:2", "model:2", "data:2,model:2"])
def test_on_several_devices(mesh):
    assert isinstance(RANDOM.target.config, LlamaConfig)
    sharding = sharding_of(mesh, RANDOM.target.config)
    spread = dataclasses.replace(
        RANDOM, target=sharding.put(RANDOM.target, sharding.target), head=None, sharding=sharding
    )
    prompts = ["one", "two, three", "four"]
    for one, other in zip(
        prompt_logprobs(spread, prompts, top_logprobs=2), prompt_logprobs(RANDOM, prompts, top_logprobs=2), strict=True
    ):
        assert_equal(one, other)
        assert [[id_ for id_, _ in place] for place in one.top_logprobs[1:]] == [
            [id_ for id_, _ in place] for place in other.top_logprobs[1:]
        ]


def test_an_engine_on_several_devices():
    sharding = sharding_of("data:2,model:2", RANDOM.target.config)
    spread = dataclasses.replace(
        RANDOM, target=sharding.put(RANDOM.target, sharding.target), head=None, sharding=sharding
    )
    with Engine(spread, rows=2, max_tokens=48) as engine:
        answer = engine.submit(PROMPT, max_new_tokens=20)
        tickets = engine.submit_scores(["one", "two, three", "four"])
        for ticket, other in zip(tickets, prompt_logprobs(RANDOM, ["one", "two, three", "four"]), strict=True):
            assert_equal(ticket.result(60.0).prompt_logprobs, other)
        assert answer.result().token_ids == generate(RANDOM, PROMPT, max_new_tokens=20, drafter="none").token_ids


@pytest.mark.proof
def test_an_engine_scores_beside_its_answers():
    how = dict(max_new_tokens=30, seed=2, temperature=1.0)
    with Engine(RANDOM, **ROOM) as engine:
        answers = [engine.submit(PROMPT, sample=sample, **how) for sample in range(3)]
        first, second = engine.submit_scores(["one, two", list(range(40))], top_logprobs=2)
        assert_equal(first.result(60.0).prompt_logprobs, prompt_logprobs(RANDOM, "one, two"))
        result = second.result(60.0)
        assert_equal(result.prompt_logprobs, prompt_logprobs(RANDOM, list(range(40))))
        assert (result.text, result.token_ids, result.prompt_tokens) == ("", [], 40)
        alone = generate(RANDOM, PROMPT, num_samples=3, **how, **DYNAMIC)
        assert [ticket.result().token_ids for ticket in answers] == [one.token_ids for one in alone]


def test_what_goes_wrong_in_an_engine(monkeypatch):
    with Engine(RANDOM, **ROOM) as engine:
        with pytest.raises(QueueFull, match="0 of 4 places in the queue are taken and 5 are requested"):
            engine.submit_scores(["a"] * 5)
        with pytest.raises(ValueError, match="has 49 tokens; there is room for 48"):
            engine.submit_scores([[1] * 49])
        monkeypatch.setattr(Scoring, "read", lambda *_: 1 / 0)
        (ticket,) = engine.submit_scores(["a"])
        with pytest.raises(EngineError, match="failed at this prompt, .*; ask again"):
            ticket.result(60.0)
        monkeypatch.undo()
        assert engine.submit_scores(["a"])[0].result(60.0).prompt_logprobs is not None
        assert engine.submit(PROMPT, max_new_tokens=2).result().token_ids
    with pytest.raises(EngineClosed):
        engine.submit_scores(["a"])


def test_cancelled_scores(monkeypatch):
    compiling = threading.Event()
    prepare = Scoring.prepare
    monkeypatch.setattr(Scoring, "prepare", lambda self: (compiling.wait(60), prepare(self)))
    with Engine(RANDOM, **ROOM) as engine:
        begun, waits, last = engine.submit_scores(["a", "b", "cd"])
        for ticket in (waits, begun):
            ticket.cancel()
            assert ticket.result(60.0).finish_reason == "cancelled" and ticket.result().prompt_logprobs is None
        compiling.set()
        assert_equal(last.result(60.0).prompt_logprobs, prompt_logprobs(RANDOM, "cd"))


@pytest.mark.parametrize(
    "prompts, options, message",
    [
        ("", {}, "the prompt is empty"),
        ([[0], [-1]], {}, "prompt 1 holds token id -1"),
        ([1] * 57, {}, "the prompt has 57 tokens; there is room for 56, so give no more"),
        ("a", {"top_logprobs": 21}, "top_logprobs=21; expected at most 20"),
        ("a", {"top_logprobs": -1}, "top_logprobs=-1; expected"),
    ],
)
def test_what_is_refused(api, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        api.prompt_logprobs(RANDOM, prompts, **options)


def test_the_whole_context_is_scored():
    assert len(prompt_logprobs(RANDOM, [1] * RANDOM.context).logprobs) == RANDOM.context
    assert requests_to_score(RANDOM, ["a"], 0, 56)[0].options.max_new_tokens == 1
