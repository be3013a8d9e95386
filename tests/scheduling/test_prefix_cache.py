"""A prompt that starts from a prefix read before has the state, bit for bit, and the text of one that is read whole."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from speller import CONFIG, TOKENIZER

from eagle_jax.api import Engine, EngineError, Model
from eagle_jax.configs.target import Rope
from eagle_jax.decoding.policy import DynamicTree, likeliest_tree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.draft_model import DraftModel
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.hybrid import Hybrid
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.token_recycling import ACCEPTANCE_BY_RANK, TokenRecycling
from eagle_jax.models import layout
from eagle_jax.requests.request import DUMMY_OPTIONS, Request
from eagle_jax.scheduling import chunked_prefill, programs, scheduler
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import BatchShape
from eagle_jax.scheduling.chunked_prefill import ChunkedPrefill
from eagle_jax.scheduling.prefix_cache import PrefixCache, block_ids_of
from eagle_jax.scheduling.recorder import Recorder
from eagle_jax.sharding import sharding_of, to_host
from eagle_jax.testing import synthetic_head3, synthetic_hydra, synthetic_pair

RNG = np.random.default_rng(0)
CHUNK, ROOM, PLENTY = 8, 200, 1 << 30
WIDE = dataclasses.replace(  # as wide as the CPU backend's blocks need it
    CONFIG,
    hidden_size=64,
    intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=ROOM,
)
STORED, HEAD = synthetic_pair(WIDE, seed=2, strength=0.6, error=0.15)
TREE = DynamicTree(8, 2, 2)


def laid_out(model: Any, head_dim: int) -> Any:
    return dataclasses.replace(model, params=layout.for_decoding(jax.tree.map(lambda x: x, model.params), head_dim))


TARGET = laid_out(STORED, 32)
MODEL = Model(TARGET, None, TOKENIZER, stop_ids=(), context=ROOM)
DRAFTERS: dict[str, Drafter] = {
    "plain": Plain(),
    "eagle1": Eagle(head=laid_out(HEAD, 32), policy=TREE),
    "eagle3": Eagle(head=laid_out(synthetic_head3(STORED, error=0.1), 32), policy=TREE),
    "prompt lookup": PromptLookup(copied=4),
    "token recycling": TokenRecycling(policy=likeliest_tree(8, ACCEPTANCE_BY_RANK), width=4),
}
MORE = {
    "draft model": DraftModel(model=TARGET, policy=TREE),
    "lookahead": Lookahead(window=3, ngram=3, guesses=2),
    "hydra": HydraDrafter(head=laid_out(synthetic_hydra(STORED, prefix=True), 32), policy=TREE),
    "recorded hybrid": Recorder(Hybrid(DRAFTERS["eagle1"], PromptLookup(copied=3))),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    for module in (chunked_prefill, scheduler):
        monkeypatch.setattr(module, "chunk_tokens", lambda: CHUNK)


def tokens(count: int) -> list[int]:
    return RNG.integers(0, 200, count).tolist()


def engine_of(name: str, budget: int, **how: Any) -> Engine:
    how = dict(rows=2, max_tokens=ROOM, drafter=DRAFTERS[name], prefix_cache_bytes=budget) | how
    return Engine(MODEL, **how)


def batch_of(drafter: Drafter, model: Model = MODEL) -> Batch:
    return Batch(model, drafter, BatchShape(2, 256, Sampling(sampled=True, filtered=True), logprobs=0, stop_ids=1))


def request_of(prompt: list[int], salt: str = "") -> Request:
    return Request(0, prompt, DUMMY_OPTIONS, seed=0, sample=0, cache_salt=salt)


def read(batch: Batch, prompt: list[int], prefixes: PrefixCache, salt: str = "") -> tuple[int, Any]:
    """Tokens that were not read anew, and all that is there of a prompt once it is read."""
    prefill = ChunkedPrefill(batch, request_of(prompt, salt), prefixes)
    prefill.read(prefill.num_unread)
    first_row = jax.tree.map(lambda leaf: leaf[:1] if leaf.ndim else leaf, to_host(prefill._progress))
    return prefill._row.cached_tokens, first_row  # a mesh's other rows are padding


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.matrix
@pytest.mark.parametrize("name", DRAFTERS)
def test_ten_turns_are_answered_as_without_it_and_read_once(name):
    texts = {}
    for budget in (PLENTY, 0):
        rng = np.random.default_rng(1)
        with engine_of(name, budget) as engine:
            compiled = programs.compiled()
            for temperature in (0.0, 1.0):
                history, before = [], 0
                for turn in range(10):
                    history += rng.integers(0, 200, 7).tolist()
                    ticket = engine.submit(history, max_new_tokens=9, temperature=temperature, seed=turn)
                    result = ticket.result(60.0)
                    # a prompt's last whole chunks but the one with its last token are there in the next turn
                    assert result.stats.cached_tokens == (before if budget else 0)
                    before = (len(history) - 1) // CHUNK * CHUNK
                    history = history + result.token_ids
                texts[budget, temperature] = history
            assert programs.compiled() == compiled
    assert texts[PLENTY, 0.0] == texts[0, 0.0] and texts[PLENTY, 1.0] == texts[0, 1.0]


@pytest.mark.parametrize("name", [*DRAFTERS, *MORE])
def test_the_state_is_that_of_a_prompt_that_was_read_whole(name):
    batch, prefixes = batch_of((DRAFTERS | MORE)[name]), PrefixCache(PLENTY)
    first = tokens(45)
    for prompt, cached in (
        (first, 0),
        (first, 40),  # again: its last token is read
        (first[:41], 40),
        (first[:40], 32),  # the fifth chunk has the last token now
        (first[:30] + tokens(50), 24),  # turns off within a chunk
        (first[:24] + tokens(9), 16),  # turns off behind a chunk, whose last token was followed by another
        (tokens(1), 0),
    ):
        _, whole = read(batch, prompt, PrefixCache(0))
        found, reused = read(batch, prompt, prefixes)
        assert found == cached
        assert_same(reused, whole)


def test_over_a_mesh_the_state_is_the_same_and_lies_where_it_did():
    config = dataclasses.replace(CONFIG, max_position_embeddings=ROOM)
    sharding, (target, head) = sharding_of("data:2,model:2", config), synthetic_pair(config)
    target, head = sharding.put(target, sharding.target), sharding.put(head, sharding.head)
    model = Model(target, None, TOKENIZER, stop_ids=(), context=ROOM, sharding=sharding)
    batch, prefixes, first = batch_of(Eagle(head=head, policy=TREE), model), PrefixCache(PLENTY), tokens(30)
    for prompt, cached in ((first, 0), (first[:20] + tokens(20), 16)):
        compiled = programs.compiled()
        _, whole = read(batch, prompt, PrefixCache(0))
        found, reused = read(batch, prompt, prefixes)
        assert found == cached and programs.compiled() <= compiled + (1 if cached else 3)
        assert_same(reused, whole)


def test_with_dynamic_rope_keys_hang_on_the_length_of_the_prompt():
    rope = Rope(theta=10000.0, kind="dynamic", factor=2.0, original_max_position_embeddings=32)
    target, _ = synthetic_pair(dataclasses.replace(CONFIG, rope=rope, max_position_embeddings=ROOM))
    batch = batch_of(Plain(), Model(target, None, TOKENIZER, stop_ids=(), context=ROOM))
    prefixes, first = PrefixCache(PLENTY), tokens(60)
    for length, cached in ((20, 0), (32, 16), (60, 0), (60, 56), (59, 0)):
        _, whole = read(batch, first[:length], PrefixCache(0))
        found, reused = read(batch, first[:length], prefixes)
        assert found == cached
        assert_same(reused, whole)


def test_a_block_of_other_tokens_would_be_seen_and_is_not_found():
    batch, prefixes, prompt = batch_of(Plain()), PrefixCache(PLENTY), tokens(20)
    other = [prompt[0] + 1, *prompt[1:]]
    _, whole = read(batch, prompt, PrefixCache(0))
    read(batch, other, prefixes)
    found, reused = read(batch, prompt, prefixes)
    assert found == 0
    assert_same(reused, whole)

    keys = [block_ids_of(request_of(each), CHUNK, WIDE) for each in (prompt, other)]
    for key, wrong in zip(*keys, strict=True):
        prefixes._blocks[key] = prefixes._blocks[wrong]
    found, spoiled = read(batch, prompt, prefixes)
    assert found == 16
    with pytest.raises(AssertionError):
        assert_same(spoiled, whole)


def test_prompts_of_another_salt_share_nothing():
    batch, prefixes, prompt = batch_of(Plain()), PrefixCache(PLENTY), tokens(20)
    cached = [read(batch, prompt, prefixes, salt)[0] for salt in ("", "mine", "yours", "mine", "", "\ud800")]
    assert cached == [0, 0, 0, 16, 16, 0]


def test_the_budget_is_kept_and_what_was_used_last_stays():
    batch, shared = batch_of(DRAFTERS["eagle1"]), tokens(2 * CHUNK)
    prefixes = PrefixCache(PLENTY)
    read(batch, shared + tokens(CHUNK), prefixes)
    block = prefixes.bytes // 2

    prefixes = PrefixCache(5 * block)
    prompts = [shared + tokens(2 * CHUNK) for _ in range(4)]
    for prompt in prompts:  # two blocks of a kind: the first is shared, the second ends before another token
        read(batch, prompt, prefixes)
        assert prefixes.bytes <= 5 * block and prefixes.bytes % block == 0
        assert prefixes.bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(list(prefixes._blocks.values())))
    assert read(batch, prompts[-1], prefixes)[0] == 3 * CHUNK
    assert read(batch, prompts[0], prefixes)[0] == CHUNK, "only what all share is left of the first"

    short = PrefixCache(2 * block)  # not even one prompt fits: its beginning stays
    read(batch, prompts[0], short)
    assert read(batch, prompts[0], short)[0] == 2 * CHUNK and short.bytes == 2 * block
    tiny = PrefixCache(block - 1)
    read(batch, prompts[0], tiny)
    assert read(batch, prompts[0], tiny)[0] == 0 == tiny.bytes


def test_a_system_prompt_is_read_once_for_all_clients(monkeypatch):
    chunks = []
    keep = PrefixCache.keep
    monkeypatch.setattr(PrefixCache, "keep", lambda *args: (chunks.append(len(args[1])), keep(*args))[1])
    system = tokens(6 * CHUNK + 1)
    with engine_of("eagle1", PLENTY) as engine:
        chunks.clear()
        prompts = [system + [client] for client in range(8)]
        tickets = engine.submit_all(prompts, max_new_tokens=3, seed=list(range(8)))
        results = [ticket.result(60.0) for ticket in tickets]
    assert chunks == [1, 2, 3, 4, 5, 6]
    assert [result.stats.cached_tokens for result in results] == [0] + [6 * CHUNK] * 7
    assert all(result.prompt_tokens == 6 * CHUNK + 2 for result in results)


def test_memory_stays_flat():
    def held() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    with engine_of("plain", 1 << 17) as engine:
        memory = []
        for number in range(24):
            engine.submit(tokens(60), max_new_tokens=2, seed=number).result(60.0)
            memory.append(held())
        assert 0 < engine._scheduler.prefixes.bytes <= 1 << 17
    assert max(memory[12:]) <= max(memory[:12])


@pytest.mark.parametrize("message, share", [("RESOURCE_EXHAUSTED: out of memory", 0.5), ("another", None)])
def test_a_prompt_that_cannot_be_read_frees_what_is_kept(monkeypatch, message, share):
    def fail(self, chunks):
        raise RuntimeError(message)

    with engine_of("plain", PLENTY) as engine:
        prefixes, prompt = engine._scheduler.prefixes, tokens(30)
        engine.submit(prompt, max_new_tokens=2).result(60.0)
        kept = prefixes.bytes
        monkeypatch.setattr(ChunkedPrefill, "read", fail)
        with pytest.raises(EngineError, match="failed while making this answer, RuntimeError"):
            engine.submit(prompt, max_new_tokens=2).result(60.0)
        assert 0 == prefixes.bytes < kept and prefixes.budget == (PLENTY if share is None else kept * share)


def test_a_wrong_budget_is_one_sentence():
    with pytest.raises(ValueError, match="prefix_cache_bytes=-1; expected a whole number"):
        engine_of("plain", -1)
