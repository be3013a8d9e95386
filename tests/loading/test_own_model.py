"""The page on models of one's own: its code runs, and its model is decoded without loss."""

import dataclasses
import pathlib
import re
from typing import Any

import jax.numpy as jnp
import pytest

import eagle_jax
from eagle_jax import api
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.shared import Shared
from eagle_jax.models.lm import LM
from eagle_jax.models.target import Target

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "own-model.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the names on the page stand for once its code has run."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {"__name__": "own_model"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.proof
def test_it_is_a_target_as_ours_is(page: dict[str, Any]):
    assert isinstance(page["target"], Target) and not isinstance(page["target"], LM)
    assert not isinstance(object(), Target)


def test_its_head_saves_passes(page: dict[str, Any]):
    stats = page["drafted"].stats
    assert stats.mean_accepted_length > 1.5 and page["plain"].stats.mean_accepted_length == 1


def test_same_seed_same_text(page: dict[str, Any]):
    drafting = dataclasses.replace(page["model"], head=page["head"])
    for prompt, seed in ([7], 1), (list(range(40)), 2):
        asked = {"max_new_tokens": 24, "temperature": 1.0, "seed": seed}
        plain = eagle_jax.generate(page["model"], prompt, **asked)
        assert eagle_jax.generate(drafting, prompt, tree=(12, 3, 4), **asked).token_ids == plain.token_ids


def test_greedily_in_a_ragged_batch(page: dict[str, Any]):
    prompts = [[1, 2, 3], list(range(40))]
    plain = eagle_jax.generate(page["model"], prompts, max_new_tokens=24)
    drafting = dataclasses.replace(page["model"], head=page["head"])
    drafted = eagle_jax.generate(drafting, prompts, max_new_tokens=24, tree=(12, 3, 4))
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]


def test_trees_cannot_share_what_it_reads(page: dict[str, Any]):
    drafter = Shared(Eagle(head=page["head"], policy=DynamicTree(4, 2, 1)), 8)
    drafting = dataclasses.replace(page["model"], head=page["head"])
    with pytest.raises(TypeError, match="a target of the package, got"):
        eagle_jax.generate(drafting, [1, 2, 3], max_new_tokens=4, drafter=drafter)


def test_an_engine_answers_as_well(page: dict[str, Any]):
    """Whose rows come and go: what a target does not know of must not make it read another request's."""
    prompts = [[1, 2, 3], list(range(40)), [7]]
    alone = [eagle_jax.generate(page["model"], prompt, max_new_tokens=12).token_ids for prompt in prompts]
    with api.Engine(page["model"], rows=2) as engine:
        assert [rows for rows, _ in engine.by_load.entries] == [2]
        tickets = [engine.submit(prompt, max_new_tokens=12) for prompt in prompts]
        assert [ticket.result(60.0).token_ids for ticket in tickets] == alone


def test_taps_are_what_enters_the_layers(page: dict[str, Any]):
    target, tokens = page["target"], jnp.array([[4, 2]])
    cache = target.empty_cache(1, 0)
    out = target.forward(tokens, *page["causal"](1, 2), cache, (0, 2))
    entering, leaving = out.taps
    expected = target.embed(tokens) + target.params["positions"][None, :2]
    assert jnp.allclose(entering, expected) and jnp.allclose(page["norm"](leaving), out.hidden)
