"""Rows of batch jobs that an engine answers get the records that a job writes."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator

import pytest
from caller import CALLER
from speller import DYNAMIC, END, RANDOM

from eagle_jax.api import Defaults, Engine, EngineClosed, EngineError, Job, Line, answer_lines
from eagle_jax.jobs import engine_rows
from eagle_jax.scheduling.scheduler import Scheduler

ROWS = [
    {"id": "sampled", "prompt": "abc", "temperature": 1.0, "seed": 3, "max_new_tokens": 9},
    {"id": "own seed", "prompt": "q", "temperature": 1.0, "logit_bias": {"5": 3}, "stop": "z"},
    {"id": "to the context's end", "prompt": "xx", "max_new_tokens": 5000},
    {"id": "form", "prompt": "q", "choices": ["abc", "zz"]},
    {"id": "chat", "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 5},
    {"id": "nothing", "prompt_ids": []},
    {"id": "long", "prompt_ids": [5] * 60},
    {"id": "unknown", "prompt": "b", "mood": 1},
    {"custom_id": "two", "body": {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, "seed": 5, "temperature": 1.0}},
    {"custom_id": "scored", "body": {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}},
    {"custom_id": "long too", "body": {"prompt": ["ab", [5] * 60]}},
]
MODEL = dataclasses.replace(RANDOM, stop_ids=(END,))  # which forms need
ROOM = dict(rows=2, steps=2, **DYNAMIC)
DEFAULTS = Defaults(max_new_tokens=7, seed=11)


def lines_of(rows: list[dict]) -> list[Line]:
    return [Line(i, f"in.jsonl:{i + 1}", json.dumps(row).encode()) for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(MODEL, **ROOM) as engine:
        yield engine


def text_of(record: dict) -> dict:
    """A record without what follows the load, and without what numbers a prompt among those of one row."""
    if "response" not in record:
        return {name: value for name, value in record.items() if name != "stats"}
    body = record["response"]["body"]
    for choice in body.get("choices", []):
        choice["eagle"].pop("stats")
        choice["logprobs"] = choice["logprobs"] and choice["logprobs"]["tokens"]
    body.get("usage", {}).pop("completion_tokens_details", None)
    return json.loads(json.dumps(record).replace("prompt 1", "the prompt"))


@pytest.mark.proof
def test_records_are_those_of_a_job(engine, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with Job([tmp_path / "in.jsonl"], tmp_path / "out.jsonl", defaults=DEFAULTS, token_ids=True) as job:
        job.run(MODEL, batch_size=2, **DYNAMIC)
        assert job.merge() == []
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    records = asyncio.run(answer_lines(engine, lines_of(ROWS), defaults=DEFAULTS, token_ids=True))
    assert [text_of(json.loads(json.dumps(one))) for one in records] == [text_of(one) for one in expected]
    failed = [one.get("custom_id", one["id"]) for one in records if one.get("error")]
    assert failed == ["nothing", "long", "unknown", "long too"], [one.get("error") for one in records]
    other = asyncio.run(answer_lines(engine, lines_of(ROWS), defaults=Defaults(max_new_tokens=7, seed=12)))
    assert other[0]["text"] == records[0]["text"] and other[1]["seed"] != records[1]["seed"]


def test_calls_may_overlap_and_unknown_fields_be_passed_over(engine):
    async def several() -> list[list[dict]]:
        lines = lines_of(ROWS[:5] + ROWS[7:8])
        return await asyncio.gather(*(answer_lines(engine, lines, ignore_unknown=True) for _ in range(4)))

    first, *others = asyncio.run(several())
    assert "error" not in first[-1] and [text_of(one) for one in first] == [text_of(one) for one in others[-1]]
    assert all([text_of(one) for one in first] == [text_of(one) for one in other] for other in others)


def test_an_answer_may_call_functions():
    place = {"type": "object", "properties": {"at": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": place}}]
    row = {"messages": [{"role": "user", "content": "?"}], "tools": tools, "max_tokens": 30}
    with Engine(CALLER, max_tokens=56, **ROOM) as engine:
        [record] = asyncio.run(answer_lines(engine, lines_of([row])))
    assert record["finish_reason"] == "tool_calls" and record["text"] == "Let me see."
    assert record["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "sea"}'}


def test_a_failure_costs_the_rows_under_way_and_one_that_lasts_ends_it(monkeypatch, caplog):
    with Engine(MODEL, **ROOM) as engine:

        def fail(*_):
            raise RuntimeError("RESOURCE_EXHAUSTED")

        with monkeypatch.context() as patch:
            patch.setattr(engine._scheduler, "step", lambda: (patch.undo(), fail()))
            rows = asyncio.run(answer_lines(engine, lines_of([ROWS[0], ROWS[-2]])))
        assert [*rows[0]] == ["id", "error"] and "RESOURCE_EXHAUSTED" in rows[0]["error"] and not rows[1]["error"]
        [row] = asyncio.run(answer_lines(engine, lines_of(ROWS[:1])))
        assert "error" not in row

        monkeypatch.setattr(engine._scheduler, "step", fail)
        monkeypatch.setattr(Scheduler, "restart", fail)
        with pytest.raises(EngineError, match="the engine failed"):
            asyncio.run(answer_lines(engine, lines_of(ROWS[:1])))
        with pytest.raises(EngineClosed):
            asyncio.run(answer_lines(engine, lines_of(ROWS[:1])))


def test_what_is_queued_is_cancelled_when_a_line_ends_it_all(engine, monkeypatch):
    begun, real = [], engine.submit_all

    def submit(prompts, **how):
        if len(begun) == 3:
            raise EngineClosed("closed")
        begun.extend(real(prompts, **how))
        return begun[-1:]

    ended, cancel = [], engine_rows._cancel  # a quick answer may be complete before it is cancelled
    monkeypatch.setattr(engine_rows, "_cancel", lambda tickets: (ended.extend(tickets), cancel(tickets)))
    monkeypatch.setattr(engine, "submit_all", submit)
    with pytest.raises(EngineClosed):
        asyncio.run(answer_lines(engine, lines_of(ROWS[:5])))
    assert len(begun) == 3 and all(ticket in ended for ticket in begun)
    assert engine_rows.REQUEST_ERRORS and not issubclass(EngineClosed, engine_rows.REQUEST_ERRORS)
