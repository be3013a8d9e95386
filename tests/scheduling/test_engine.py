"""An engine that is always on: every answer is the one that `generate` gives, whoever else is asking."""

import asyncio
import dataclasses
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speller import CONFIG, DYNAMIC, RANDOM, SPELLED, SPELLER, asked

from eagle_jax.api import generate
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.requests.ticket import EngineClosed, EngineError, QueueFull, achunks, chunks
from eagle_jax.scheduling import chunked_prefill, engine_scheduler, programs, scheduler
from eagle_jax.scheduling.by_load import ByLoad
from eagle_jax.scheduling.engine import Engine
from eagle_jax.sharding import sharding_of

RNG = np.random.default_rng(0)
ROOM = dict(rows=2, max_tokens=48, steps=2, **DYNAMIC)
SAMPLED = {"temperature": 0.9, "top_p": 0.99}
ALONE = {"batch_size": 1, **DYNAMIC}


@pytest.fixture(scope="module")
def speller():
    with Engine(SPELLER, **ROOM) as engine:
        yield engine


@pytest.fixture(scope="module")
def random():
    with Engine(RANDOM, **ROOM) as engine:
        yield engine


def test_answers_are_those_of_generate_and_nothing_is_compiled(random):
    prompts = [RNG.integers(0, 200, size).tolist() for size in RNG.integers(1, 12, 9)]
    options = [
        SAMPLED,
        {},
        {"temperature": 1.2, "top_k": 5, "logprobs": True},
        {"top_logprobs": 3},
    ]
    compiled, results = programs.compiled(), {}

    def ask(i: int) -> None:
        results[i] = random.submit(prompts[i], max_new_tokens=3 + i, seed=i, **options[i % 4]).result(60.0)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert programs.compiled() == compiled
    for i, prompt in enumerate(prompts):
        alone = generate(RANDOM, prompt, max_new_tokens=3 + i, seed=i, **options[i % 4], **ALONE)
        assert results[i].token_ids == alone.token_ids and results[i].finish_reason == "length"
        assert results[i].stats.compile_seconds == 0
        if alone.logprobs is not None:
            np.testing.assert_allclose(results[i].logprobs, alone.logprobs, atol=1e-4)
        if alone.top_logprobs is not None:
            assert [dict(place).keys() for place in results[i].top_logprobs] == [
                dict(place).keys() for place in alone.top_logprobs
            ]
    assert random.load.busy == random.load.waiting == 0


@pytest.mark.proof
def test_load_changes_trees_and_no_answer(monkeypatch):
    """One row, two or all four take part in a step, with a tree, a chain or without drafts, as requests come and go."""
    head = RANDOM.head
    tree, chain = Eagle(head=head, policy=DynamicTree(8, 2, 2)), Eagle(head=head, policy=DynamicTree(3, 1, 1))
    loads = ByLoad(((1, Ready(tree, 5)), (2, Ready(chain, 5)), (4, Paused(tree, 5))))
    monkeypatch.setattr(engine_scheduler, "by_load", lambda *asked, **how: loads)
    used, rows_for = [], ByLoad.rows_for
    monkeypatch.setattr(ByLoad, "rows_for", lambda loads, count: (used.append(count), rows_for(loads, count))[1])
    with Engine(RANDOM, rows=4, max_tokens=64, steps=2) as engine:
        compiled = programs.compiled()
        prompts = [RNG.integers(0, 200, size).tolist() for size in (3, 9, 1, 12, 5, 7)]
        options = [SAMPLED, {"presence_penalty": 1.0}, {}, SAMPLED, {"logprobs": True}, {}]
        tickets = []
        for i, (prompt, how) in enumerate(zip(prompts, options, strict=True)):
            tickets.append(engine.submit(prompt, max_new_tokens=30 - 4 * i, seed=i, **how))
            next(iter(chunks(tickets[-1:])))  # it is running
        answers = [ticket.result(60.0).token_ids for ticket in tickets]
        assert programs.compiled() == compiled
    assert set(used) == {1, 2, 3, 4}
    for i, (prompt, how) in enumerate(zip(prompts, options, strict=True)):
        alone = generate(RANDOM, prompt, max_new_tokens=30 - 4 * i, seed=i, batch_size=1, drafter="none", **how)
        assert answers[i] == alone.token_ids, i


def test_prompts_may_be_arrays(random):
    alone = generate(RANDOM, [5, 6, 7], max_new_tokens=4, **ALONE)
    for array in (np.array([5, 6, 7]), jnp.array([5, 6, 7])):
        assert random.submit(array, max_new_tokens=4).result(60.0).token_ids == alone.token_ids
    with pytest.raises(TypeError, match="the prompt is neither text, nor chat messages, nor token ids"):
        random.submit(np.zeros((2, 3), int))


def test_several_answers_to_one_prompt(random):
    how = dict(max_new_tokens=6, seed=4, **SAMPLED)
    tickets = random.submit_all([[5, 6]], samples=range(3), **how)
    several = generate(RANDOM, [5, 6], num_samples=3, **how, **ALONE)
    assert [ticket.result(60.0).token_ids for ticket in tickets] == [one.token_ids for one in several]


def test_chunks_tell_the_text_pass_by_step(speller):
    ticket = speller.submit(asked("Spell!"), logprobs=True)
    told = list(chunks([ticket], by_step=True))
    result = ticket.result(0.0)
    assert "".join(chunk.text for chunk in told) == result.text == SPELLED
    assert [token for chunk in told for token in chunk.token_ids] == result.token_ids
    assert [logprob for chunk in told for logprob in chunk.logprobs] == result.logprobs
    assert [length for chunk in told for length in chunk.accepted_lengths] == result.stats.accepted_lengths
    assert all(len(chunk.accepted_lengths) <= 1 for chunk in told) and told[0].accepted_lengths == []
    assert [chunk.result for chunk in told if chunk.result] == [result]
    assert 0 <= ticket.waited <= ticket.to_first <= ticket.seconds
    assert ticket.waited < ticket.result().stats.first_token_seconds <= ticket.to_first

    late = list(ticket)  # who comes late is told everything at once
    assert [chunk.text for chunk in late] == [SPELLED] and late[0].accepted_lengths == result.stats.accepted_lengths


def test_stop_strings_end_answers(speller):
    tickets = [speller.submit(asked("Spell!"), stop=stop) for stop in ("pq", ["z", "k€"], "no such text")]
    texts = [ticket.result(60.0).text for ticket in tickets]
    assert texts == [SPELLED.split("pq")[0], SPELLED.split("k€")[0], SPELLED]


def test_asyncio_follows_several_and_who_leaves_makes_room(random):
    async def follow() -> None:
        tickets = [random.submit([7], max_new_tokens=40, seed=seed, **SAMPLED) for seed in range(4)]
        texts, finished = [""] * 4, [""] * 4
        async for chunk in achunks(tickets):
            texts[chunk.index] += chunk.text
            if chunk.result is not None:
                finished[chunk.index] = chunk.result.finish_reason
            tickets[1].cancel()  # under way
            tickets[3].cancel()  # in the queue
        alone = generate(RANDOM, [[7]] * 4, max_new_tokens=40, seed=list(range(4)), **SAMPLED, **ALONE)
        assert finished == ["length", "cancelled", "length", "cancelled"]
        assert [texts[0], texts[2]] == [alone[0].text, alone[2].text] and texts[3] == ""
        assert alone[1].text.startswith(texts[1]) and len(tickets[1].result().token_ids) < 40

    asyncio.run(follow())
    assert random.load.busy == 0


def test_what_does_not_fit_is_refused(random):
    with pytest.raises(ValueError, match="prompt has 10 tokens and its answer may have 39.* ask for at most 38"):
        random.submit([1] * 10, max_new_tokens=39)
    with pytest.raises(ValueError, match="prompt has 48 tokens; this engine has room for 48 .* it can have at most 47"):
        random.submit([1] * 48)
    with pytest.raises(ValueError, match="prompt has 60 tokens; the model's context is 56"):
        random.submit([1] * 60)
    with pytest.raises(ValueError, match="top_p=2"):
        random.submit([1], top_p=2.0)
    for sample in (-1, 2**32):
        with pytest.raises(ValueError, match=f"sample={sample}; expected a whole number"):
            random.submit([1], sample=sample)
    with pytest.raises(QueueFull, match="0 of 64 places in the queue are taken and 65 are requested"):
        random.submit_all([[1]] * 65)
    assert random.load.waiting == 0
    assert len(random.submit([1] * 47).result(60.0).token_ids) == 1


def test_others_wait_for_one_piece_of_a_long_prompt_at_most(monkeypatch):
    monkeypatch.setattr(chunked_prefill, "chunk_tokens", lambda: 8)
    monkeypatch.setattr(engine_scheduler, "chunk_tokens", lambda: 8)
    monkeypatch.setattr(engine_scheduler, "PREFILL_TOKENS", 16)
    with Engine(RANDOM, **ROOM) as engine:
        turns = []
        prefill, batch = chunked_prefill.ChunkedPrefill, engine._scheduler._batch
        read, decode = prefill.read, batch.decode
        monkeypatch.setattr(prefill, "read", lambda self, n: (turns.append("read"), read(self, n))[1])
        monkeypatch.setattr(batch, "decode", lambda *how, **more: (turns.append("decode"), decode(*how, **more))[1])
        prompts = [[3], RNG.integers(0, 200, 40).tolist()]
        tickets = engine.submit_all(prompts, max_new_tokens=8, seed=[0, 1])
        results = [ticket.result(60.0) for ticket in tickets]
    assert [len(list(same)) for turn, same in itertools.groupby(turns) if turn == "read"] == [2, 1, 1]
    alone = generate(RANDOM, prompts, max_new_tokens=8, seed=[0, 1], **ALONE)
    assert [result.token_ids for result in results] == [one.token_ids for one in alone]


def test_a_failure_costs_the_answers_under_way_and_no_others(speller, monkeypatch, caplog):
    lost_batch, ready = speller._scheduler._batch, threading.Event()
    decode = lost_batch.decode

    def fail(*how, **more):
        ready.wait(60.0)
        raise RuntimeError("RESOURCE_EXHAUSTED\nat some address")

    monkeypatch.setattr(lost_batch, "decode", fail)
    tickets = [speller.submit(asked("Spell!")) for _ in range(3)]
    ready.set()
    for ticket in tickets[:2]:
        with pytest.raises(
            EngineError, match="failed while making this answer, RuntimeError: RESOURCE_EXHAUSTED; ask again$"
        ):
            ticket.result(60.0)
    assert tickets[2].result(60.0).text == SPELLED and speller.alive
    assert speller._scheduler._batch.decode != decode
    assert all(array.is_deleted() for array in jax.tree.leaves((lost_batch.params, lost_batch.state)))
    (record,) = caplog.records
    assert record.message == "the engine failed at 2 answers" and "in fail" in caplog.text, "with the traceback"

    monkeypatch.setattr(scheduler, "ChunkedPrefill", lambda *_: fail())
    lost = speller.submit(asked("Spell!"))
    with pytest.raises(EngineError):
        list(lost)
    monkeypatch.undo()
    assert speller.submit(asked("Spell!")).result(60.0).text == SPELLED


def test_cycles_are_counted_anew_before_they_overflow(speller, monkeypatch):
    monkeypatch.setattr(scheduler, "MAX_STEPS", 3)
    batch = speller._scheduler._batch
    assert [speller.submit(asked("Spell!")).result(60.0).text for _ in range(3)] == [SPELLED] * 3
    assert speller._scheduler._batch is not batch and batch.state.length.is_deleted()


def test_closing_drains_or_cancels():
    engine, finished = Engine(RANDOM, **ROOM), []
    engine.watch(finished.append)
    tickets = [engine.submit([1], max_new_tokens=12) for _ in range(5)]
    engine.close()
    assert finished == tickets and {len(ticket.result(0.0).token_ids) for ticket in tickets} == {12}
    with pytest.raises(EngineClosed, match="was closed"):
        engine.submit([1])

    engine = Engine(RANDOM, **ROOM)
    tickets = [engine.submit([1], max_new_tokens=40) for _ in range(5)]
    engine.close(drain=False)
    assert [ticket.result(0.0).finish_reason for ticket in tickets] == ["cancelled"] * 5


def test_over_a_mesh_answers_are_the_same_and_nothing_is_compiled():
    sharding = sharding_of("data:2,model:2", CONFIG)
    spread = dataclasses.replace(
        RANDOM, target=sharding.put(RANDOM.target, sharding.target), head=None, sharding=sharding
    )
    prompts = [RNG.integers(0, 200, size).tolist() for size in (3, 11, 1, 6)]
    with Engine(spread, rows=2, max_tokens=48) as engine:
        compiled = programs.compiled()
        tickets = [
            engine.submit(prompt, max_new_tokens=7, seed=i, top_logprobs=i, **SAMPLED)
            for i, prompt in enumerate(prompts)
        ]
        texts = [ticket.result(60.0).token_ids for ticket in tickets]
        assert programs.compiled() == compiled
    alone = generate(RANDOM, prompts, max_new_tokens=7, seed=list(range(4)), **SAMPLED, **ALONE)
    assert texts == [result.token_ids for result in alone]
