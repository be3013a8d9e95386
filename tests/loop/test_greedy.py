"""Greedy draws whose logits are made for some rows at a time."""

import jax
import numpy as np
import pytest
from speller import RANDOM, SPELLER, asked

from eagle_jax.decoding.policy import StaticTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.token_recycling import TokenRecycling
from eagle_jax.loop import decode, greedy
from eagle_jax.scheduling.generate import generate


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_they_are_those_of_all_rows_at_once(monkeypatch, rows):
    target = RANDOM.target
    hidden = jax.random.normal(jax.random.key(0), (3, 7, target.config.hidden_size))
    monkeypatch.setattr(greedy, "MAX_LOGITS_BYTES", 4 * target.config.vocab_size * rows)
    assert greedy.is_large(target, hidden) == (rows < 21)
    expected = np.argmax(target.logits(hidden), axis=-1)
    np.testing.assert_array_equal(greedy.greedy_draws(target, hidden), expected)
    made = str(jax.make_jaxpr(lambda x: greedy.greedy_draws(target, x))(hidden))
    assert (f"21,{target.config.vocab_size}]" in made) == (rows >= 21), "the logits of all rows"


@pytest.mark.proof
def test_texts_are_the_same(monkeypatch):
    expected = generate(SPELLER, [asked("?"), asked("two")], max_new_tokens=12, drafter="eagle", tree=(6, 3, 2))
    asked_for = []
    monkeypatch.setattr(decode, "is_large", lambda *_: asked_for.append(True) or True)
    monkeypatch.setattr(greedy, "MAX_LOGITS_BYTES", 4 * SPELLER.target.config.vocab_size * 5)
    found = generate(SPELLER, [asked("?"), asked("two")], max_new_tokens=12, drafter="eagle", tree=(7, 3, 2))
    assert asked_for and [one.token_ids for one in found] == [one.token_ids for one in expected]


def test_who_reads_logits_says_so():
    """Token recycling learns from the logits of all nodes, and whoever wraps it reads what it reads."""
    recycling = TokenRecycling(policy=StaticTree((-1, 0, 0, 1)))
    assert recycling.reads_logits and not Plain().reads_logits
