"""Targets whose layers do not all keep keys and values in the engine: prefixes, joining requests, and rows that are
given to others."""

import dataclasses
import functools

import jax
import pytest
import test_prefix_cache as prefix
from speller import TOKENIZER
from test_prefix_cache import small_chunks  # noqa: F401  # a fixture

from eagle_jax.api import Engine, Model, generate
from eagle_jax.configs.target import ByLayer, DeltaNet, LlamaConfig, Rope
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.scheduling import chunked_prefill, programs
from eagle_jax.scheduling.prefix_cache import PrefixCache, block_ids_of
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


@pytest.mark.matrix
@pytest.mark.parametrize("name", CONFIGS)
def test_the_state_at_the_end_of_a_chunk_is_kept(name: str):
    batch, prefixes = prefix.batch_of(eagle(name), model(name)), PrefixCache(prefix.PLENTY)
    first = prefix.tokens(45)
    for prompt, cached in ((first, 0), (first, 40), (first[:30] + prefix.tokens(50), 24), (prefix.tokens(3), 0)):
        _, whole = prefix.read(batch, prompt, PrefixCache(0))
        found, reused = prefix.read(batch, prompt, prefixes)
        assert found == cached
        prefix.assert_same(reused, whole)


def test_a_state_is_kept_at_some_blocks_and_where_prompts_part():
    """The state is 2.75 times as large as the keys and values of a chunk, so every third block has it."""
    batch, prefixes, first = (
        prefix.batch_of(eagle("recurrent"), model("recurrent")),
        PrefixCache(prefix.PLENTY),
        prefix.tokens(61),
    )
    other = first[:41] + prefix.tokens(30)
    for prompt, cached, states in (
        (first, 0, {3, 6, 7}),
        (first, 56, {3, 6, 7}),
        (other, 24, {3, 5, 6, 7}),  # the fifth was there without its state, and is the last that they share
        (first[:41] + prefix.tokens(4), 40, {3, 5, 6, 7}),
        (first[:50], 48, {3, 5, 6, 7}),
        (first[:17], 0, {2, 3, 5, 6, 7}),
        (first[:17], 16, {2, 3, 5, 6, 7}),
    ):
        _, whole = prefix.read(batch, prompt, PrefixCache(0))
        found, reused = prefix.read(batch, prompt, prefixes)
        assert found == cached
        prefix.assert_same(reused, whole)
        blocks = [
            prefixes._blocks[key] for key in block_ids_of(prefix.request_of(first), prefix.CHUNK, CONFIGS["recurrent"])
        ]
        assert {number for number, block in enumerate(blocks, start=1) if block.state is not None} == states
    held = jax.tree.leaves(list(prefixes._blocks.values()))
    assert prefixes.bytes == sum(leaf.nbytes for leaf in held)


def test_blocks_take_less_than_with_all_states(monkeypatch):
    batch, prompt = prefix.batch_of(eagle("recurrent"), model("recurrent")), prefix.tokens(12 * prefix.CHUNK + 1)
    taken = []
    for interval in (chunked_prefill.state_interval, lambda *_: 1):
        monkeypatch.setattr(chunked_prefill, "state_interval", interval)
        prefixes = PrefixCache(prefix.PLENTY)
        prefix.read(batch, prompt, prefixes)
        taken.append(prefixes.bytes)
        assert prefix.read(batch, prompt, prefixes)[0] == 12 * prefix.CHUNK
    assert taken[0] < 0.55 * taken[1]


@pytest.mark.proof
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
            compiled = programs.compiled()
            tickets = [engine.submit(p, seed=i, **how) for i, p in enumerate(prompts)]
            answers = [ticket.result(120.0) for ticket in tickets]
            assert programs.compiled() == compiled
        assert [answer.token_ids for answer in answers] == expected
        assert any(answer.stats.cached_tokens for answer in answers)
