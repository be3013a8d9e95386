"""Targets whose layers do not all keep keys and values in the engine: prefixes, joining requests, and rows that are
given to others."""

import dataclasses
import functools

import pytest
import test_prefix_cache as prefix
from speller import TOKENIZER
from test_prefix_cache import small_chunks  # noqa: F401  # a fixture

from eagle_jax.api import Engine, Model, generate
from eagle_jax.config import ByLayer, DeltaNet, LlamaConfig, Rope
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.scheduling.prefix_cache import PrefixCache
from eagle_jax.testing import synthetic_pair

CONFIGS: dict[str, LlamaConfig] = {
    "recurrent": dataclasses.replace(
        prefix.WIDE,
        num_hidden_layers=3,
        rope=Rope(theta=1e4, partial_rotary_factor=0.5),
        gated=True,
        delta_net=DeltaNet(
            layers=(0, 2), num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=16, conv_kernel=4
        ),
    ),
    "shared": dataclasses.replace(
        prefix.WIDE,
        num_hidden_layers=3,
        sliding_window=6,
        full_attention_layers=(1, 2),
        by_layer=ByLayer(head_dim=16, num_key_value_heads=2, num_kv_shared_layers=1),
    ),
}


@functools.cache
def model(name: str) -> Model:
    stored, head = synthetic_pair(CONFIGS[name], seed=2, strength=0.6, error=0.15)
    laid = prefix.laid_out(stored, CONFIGS[name].head_dims), prefix.laid_out(head, 32)
    return Model(*laid, TOKENIZER, stop_ids=(), context=prefix.ROOM)


def eagle(name: str) -> Eagle:
    return Eagle(head=model(name).head, policy=prefix.TREE)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_state_at_the_end_of_a_chunk_is_kept(name: str):
    batch, prefixes = prefix.batch_of(eagle(name), model(name)), PrefixCache(prefix.PLENTY)
    first = prefix.tokens(45)
    for prompt, cached in ((first, 0), (first, 40), (first[:30] + prefix.tokens(50), 24), (prefix.tokens(3), 0)):
        _, whole = prefix.read(batch, prompt, PrefixCache(0))
        found, reused = prefix.read(batch, prompt, prefixes)
        assert found == cached
        prefix.assert_same(reused, whole)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_engine_answers_as_generate_does(name: str):
    """Six prompts over two rows, two of them with a prefix that was read; each row has several requests in turn."""
    shared = prefix.tokens(30)
    prompts = [shared, shared[:20] + prefix.tokens(9), prefix.tokens(4), shared, prefix.tokens(17), prefix.tokens(1)]
    how = dict(max_new_tokens=24, temperature=0.8)
    expected = [generate(model(name), [p], drafter="none", seed=i, **how)[0].token_ids for i, p in enumerate(prompts)]
    assert len(set(sum(expected, []))) > 5, "a text that says nothing tests nothing"
    for drafter in (eagle(name), Plain()):
        with Engine(
            model(name), rows=2, max_tokens=prefix.ROOM, drafter=drafter, prefix_cache_bytes=prefix.PLENTY
        ) as engine:
            tickets = [engine.submit(p, seed=i, **how) for i, p in enumerate(prompts)]
            answers = [ticket.result(120.0) for ticket in tickets]
        assert [answer.token_ids for answer in answers] == expected
        assert any(answer.stats.cached_tokens for answer in answers)
