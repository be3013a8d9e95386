"""On accelerators, requests that have few nodes each share the room of their batch."""

import dataclasses

import pytest
from test_drafters import MEDUSA, WITH_HEAD

from eagle_jax import api, load
from eagle_jax.drafters.calibrated import Calibrated
from eagle_jax.drafters.shared import Shared
from eagle_jax.methods import choice as choices
from eagle_jax.methods.choice import choose
from eagle_jax.methods.default_trees import ON_ACCELERATORS
from eagle_jax.sharding import sharding_of


@pytest.fixture
def on_an_accelerator(monkeypatch):
    monkeypatch.setattr(choices, "on_cpu", lambda: False)


def test_few_nodes_each_are_shared(on_an_accelerator):
    choice = choose(WITH_HEAD, "auto", "auto")
    alone, some, many = (choice.for_batch(rows) for rows in (1, 8, 64))
    assert isinstance(alone, Calibrated) and isinstance(some, Calibrated)
    assert isinstance(many, Shared) and many.budget == 256 and 4 < many.shape.nodes <= 8
    assert choice.for_batch(64) is many, "made once, as its programs are"
    assert isinstance(choose(MEDUSA, "auto", "auto").for_batch(64), Shared)


def test_a_tree_that_was_asked_for_is_read_whole(on_an_accelerator):
    assert isinstance(choose(WITH_HEAD, "eagle", (4, 2, 1)).for_batch(64), Calibrated)


def test_over_several_devices_nothing_is_shared(on_an_accelerator):
    placed = dataclasses.replace(WITH_HEAD, sharding=sharding_of("data:2", WITH_HEAD.target.config))
    assert isinstance(choose(placed, "auto", "auto").for_batch(64), Calibrated)


def test_texts_are_those_without(on_an_accelerator, monkeypatch):
    monkeypatch.setattr(choices, "ON_ACCELERATORS", ON_ACCELERATORS._replace(max_batch_nodes=24))
    model = load("toy")
    asked = [f"Tom has {count} apples and gives away" for count in range(2, 8)]
    how = dict(max_new_tokens=40, temperature=1.0, seed=list(range(6)), batch_size=6)
    assert isinstance(choose(model, "auto", "auto").for_batch(8), Shared)
    plain = api.generate(model, asked, drafter="none", **how)
    shared = api.generate(model, asked, **how)
    assert [one.token_ids for one in shared] == [one.token_ids for one in plain]
    assert sum(one.stats.steps for one in shared) < 0.8 * sum(one.stats.steps for one in plain)
