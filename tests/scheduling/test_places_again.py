"""A request in the place of an earlier one, and read into its memory, is answered as one that comes first."""

import dataclasses

import jax.numpy as jnp
import pytest
from speller import DYNAMIC, RANDOM, SCRIPT, SPELLER, asked

from eagle_jax import api
from eagle_jax.models.lm import LM
from eagle_jax.scheduling import insert

SPOILED = SCRIPT[5]  # its embedding is NaN, so all that is computed once it has been read
TREES = {"plain": {"drafter": "none"}, "drafted": DYNAMIC}


def spoiled() -> api.Model:
    table = SPELLER.target.params["embed_tokens"]["embedding"].at[SPOILED].set(jnp.nan)
    target = LM(params=SPELLER.target.params | {"embed_tokens": {"embedding": table}}, config=SPELLER.target.config)
    return dataclasses.replace(SPELLER, target=target)


@pytest.mark.matrix
@pytest.mark.parametrize("backend, trees", [("cpu", "drafted"), ("xla", "plain"), ("xla", "drafted")])
def test_what_a_failed_request_left_behind_spoils_no_other(trees, backend, monkeypatch, set_operations):
    set_operations(EAGLE_JAX_OPS=backend)
    monkeypatch.setattr(insert, "BLOCK", 1)
    model, other = spoiled(), [SCRIPT[10]]
    expected = api.generate(model, other, max_new_tokens=4, **TREES[trees]).token_ids
    with api.Engine(model, rows=1, max_tokens=64, **TREES[trees]) as engine:
        for prompt in (asked("?"), [SCRIPT[9], SPOILED, SCRIPT[9]], asked("?")):
            assert engine.submit(prompt, max_new_tokens=12).result().finish_reason == "error"
            assert engine.submit(other, max_new_tokens=4).result().token_ids == expected


@pytest.mark.matrix
@pytest.mark.parametrize("trees", TREES)
def test_short_prompts_after_long_ones(trees, monkeypatch):
    """Caches are copied in blocks as far as the prompt goes; the last block ends where the caches do."""
    monkeypatch.setattr(insert, "BLOCK", 24)
    prompts = {1: SCRIPT[:29], 0: asked("?"), 2: SCRIPT[3:28]}
    how = dict(max_new_tokens=12, temperature=1.0)
    expected = {
        seed: api.generate(RANDOM, prompt, seed=seed, **how, **TREES[trees]) for seed, prompt in prompts.items()
    }
    with api.Engine(RANDOM, rows=1, max_tokens=48, prefix_cache_bytes=0, **TREES[trees]) as engine:
        for seed in (1, 0, 2, 1, 0):
            assert engine.submit(prompts[seed], seed=seed, **how).result().token_ids == expected[seed].token_ids
