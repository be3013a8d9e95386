"""The likeliest tokens in the place of each token, with their log-probabilities: the target's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speller import DYNAMIC, RANDOM, SPELLER, TOKENIZER, asked

from eagle_jax import api
from eagle_jax.api import generate

PROMPT = TOKENIZER("one, two")["input_ids"]


@pytest.mark.matrix
@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.5}])
def test_they_are_the_targets_own(how):
    result = generate(RANDOM, PROMPT, max_new_tokens=12, top_logprobs=5, drafter="none", **how)
    text = jnp.asarray([[*PROMPT, *result.token_ids]])
    logits = RANDOM.target.logits(RANDOM.target(text)[0])[0, len(PROMPT) - 1 : -1]
    expected, ids = jax.lax.top_k(jax.nn.log_softmax(logits), 5)
    assert [[id_ for id_, _ in place] for place in result.top_logprobs] == ids.tolist()
    np.testing.assert_allclose([[p for _, p in place] for place in result.top_logprobs], expected, atol=1e-5)
    for token, logprob, place in zip(result.token_ids, result.logprobs, result.top_logprobs, strict=True):
        assert dict(place).get(token, logprob) == logprob, "the same number, where the token is among them"


@pytest.mark.proof
def test_any_drafter_in_any_batch():
    how = dict(max_new_tokens=12, temperature=[1.0, 0.7, 0.0], seed=[1, 2, 3], top_logprobs=[20, 0, 3])
    plain = generate(RANDOM, ["one", "two", "three"], drafter="none", **how)
    assert [None if one.top_logprobs is None else len(one.top_logprobs[0]) for one in plain] == [20, None, 3]
    for drafting in (DYNAMIC, {"drafter": "prompt-lookup"}, DYNAMIC | {"batch_size": 2}):
        for one, other in zip(generate(RANDOM, ["one", "two", "three"], **drafting, **how), plain, strict=True):
            assert (one.token_ids, one.logprobs is None) == (other.token_ids, other.logprobs is None)
            for mine, theirs in zip(one.top_logprobs or [], other.top_logprobs or [], strict=True):
                assert [id_ for id_, _ in mine] == [id_ for id_, _ in theirs]
                np.testing.assert_allclose([p for _, p in mine], [p for _, p in theirs], atol=1e-5)


def test_none_stand_behind_a_stop_string():
    result = generate(SPELLER, asked("?"), stop="e", top_logprobs=2, **DYNAMIC)
    assert result.text == "abcd" and len(result.top_logprobs) == len(result.logprobs) == len(result.token_ids)


def test_streams_and_engines():
    expected = generate(RANDOM, PROMPT, max_new_tokens=12, top_logprobs=3, **DYNAMIC)
    pieces = list(api.stream(RANDOM, PROMPT, max_new_tokens=12, top_logprobs=3, **DYNAMIC))
    assert [place for piece in pieces for place in piece.top_logprobs] == expected.top_logprobs
    with api.Engine(RANDOM, rows=2, max_tokens=50, tree=(8, 2, 2)) as engine:
        plain = engine.submit(PROMPT, max_new_tokens=12)
        ticket = engine.submit(PROMPT, max_new_tokens=12, top_logprobs=3)
        for mine, theirs in zip(ticket.result().top_logprobs, expected.top_logprobs, strict=True):
            assert [id_ for id_, _ in mine] == [id_ for id_, _ in theirs]
            np.testing.assert_allclose([p for _, p in mine], [p for _, p in theirs], atol=1e-5)
        assert plain.result().top_logprobs is None and plain.result().token_ids == expected.token_ids


def test_what_is_refused():
    with pytest.raises(ValueError, match="top_logprobs=21; expected at most 20"):
        generate(RANDOM, PROMPT, top_logprobs=21)
