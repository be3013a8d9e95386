"""Modes of an engine's steps: which program runs for whom, and that nobody's tokens depend on it."""

import dataclasses
import threading
from collections.abc import Callable

import pytest
from speller import DYNAMIC, RANDOM

from eagle_jax.api import Engine, generate
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.requests.options import joint_mode, mode_of
from eagle_jax.requests.request import DUMMY_OPTIONS, DUMMY_REQUEST, WITH_TABLES, Request
from eagle_jax.scheduling import modes, programs
from eagle_jax.scheduling.modes import MAX_MODES, Modes
from eagle_jax.structured.table_sizes import TableSizes

ANY, GREEDY = Sampling(sampled=True, filtered=True), joint_mode([])
ROOM = dict(rows=2, max_tokens=96, steps=2, **DYNAMIC)
OTHERS = (
    dict(temperature=0.8),
    dict(temperature=1.0, top_p=0.7),
    dict(temperature=1.0, top_k=4, logprobs=True),
    dict(temperature=0.0, top_logprobs=3),
    dict(temperature=0.7, presence_penalty=0.5),
)


def options(**values: object):
    return dataclasses.replace(DUMMY_OPTIONS, **values)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Sampling]:
    """The modes of all steps that are run from now on."""
    found: list[Sampling] = []
    choose = Modes.choose

    def chosen(self: Modes, *of: object) -> Sampling:
        found.append(choose(self, *of))
        return found[-1]

    monkeypatch.setattr(Modes, "choose", chosen)
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("other", OTHERS)
def test_a_greedy_answer_is_the_same_whoever_joins(
    other: dict[str, object], taken: list[Sampling], monkeypatch: pytest.MonkeyPatch
):
    engines = Modes(ANY, [GREEDY])  # as on an accelerator
    monkeypatch.setattr("eagle_jax.scheduling.engine_scheduler.for_any_request", lambda general: engines)
    prompts = [5, 6, 7], [8, 9]
    expected = generate(RANDOM, prompts[0], max_new_tokens=40, **DYNAMIC)
    beside = generate(RANDOM, prompts[1], max_new_tokens=12, seed=3, **other, **DYNAMIC)
    taken.clear()
    with Engine(RANDOM, **ROOM) as engine:
        compiled, first = programs.compiled(), engine.submit(prompts[0], max_new_tokens=40)
        next(iter(first))
        second = engine.submit(prompts[1], max_new_tokens=12, seed=3, **other)
        assert first.result(60.0).token_ids == expected.token_ids
        assert second.result(60.0).token_ids == beside.token_ids
        assert engine.submit(prompts[0], max_new_tokens=40).result(60.0).token_ids == expected.token_ids
        assert programs.compiled() == compiled, "something was compiled in the middle of an answer"
    assert set(taken) == {GREEDY, ANY}, "greedy rows alone have a program of their own"


def test_other_modes_are_compiled_beside_the_batch(monkeypatch: pytest.MonkeyPatch, taken: list[Sampling]):
    engines = Modes(ANY, [GREEDY], background=True)
    monkeypatch.setattr("eagle_jax.scheduling.engine_scheduler.for_any_request", lambda general: engines)
    how = dict(max_new_tokens=20, temperature=0.8, seed=5)
    expected = generate(RANDOM, [5, 6, 7], **how, **DYNAMIC)
    taken.clear()
    with Engine(RANDOM, **ROOM) as engine:
        first = engine.submit([5, 6, 7], **how).result(60.0)
        assert taken[0] == ANY and first.stats.compile_seconds == 0
        engines.wait(60.0)
        taken.clear()
        second = engine.submit([5, 6, 7], **how).result(60.0)
    assert set(taken) == {dataclasses.replace(GREEDY, sampled=True)}
    assert first.token_ids == second.token_ids == expected.token_ids


class Preparation:
    """Stands for `Batch.preparation`."""

    def __init__(self) -> None:
        self.keys: list[tuple[Sampling, TableSizes | None]] = []
        self.goes_on, self.error = threading.Event(), None

    def __call__(self, sizes: TableSizes | None, mode: Sampling) -> Callable[[], None]:
        self.keys.append((mode, sizes))

        def compile_programs() -> None:
            assert self.goes_on.wait(60.0)
            if self.error is not None:
                raise self.error

        return compile_programs


def request(**values: object) -> Request:
    return dataclasses.replace(DUMMY_REQUEST, options=options(**values))


def test_one_mode_is_compiled_at_a_time_and_a_few_at_most():
    preparation, sizes = Preparation(), TableSizes()
    found = Modes(ANY, background=True)
    rows = [
        (request(temperature=float(warm), logprobs=recorded), tables)
        for warm in (0, 1)
        for recorded in (False, True)
        for tables in (None, sizes)
    ]
    assert len(rows) > MAX_MODES
    for row, tables in rows[:2]:
        assert found.choose([row], tables, preparation) == ANY
    assert preparation.keys == [(GREEDY, None)], "the second waits for the first"
    preparation.goes_on.set()
    for row, tables in rows:
        found.choose([row], tables, preparation)
        found.wait(60.0)
    assert len(preparation.keys) == MAX_MODES
    for number, (row, tables) in enumerate(rows):
        assert found.choose([row], tables, preparation) == (row.options.mode if number < MAX_MODES else ANY)
    found.close()


def test_a_mode_that_cannot_be_compiled_is_done_without(caplog: pytest.LogCaptureFixture):
    preparation, found = Preparation(), Modes(ANY, background=True)
    preparation.error = RuntimeError("RESOURCE_EXHAUSTED")
    preparation.goes_on.set()
    for _ in range(3):
        assert found.choose([DUMMY_REQUEST], None, preparation) == ANY
        found.wait(60.0)
    assert len(preparation.keys) == 1 and "were not compiled" in caplog.text
    found.close()
    assert found.choose([WITH_TABLES], TableSizes(), preparation) == ANY and len(preparation.keys) == 1


def test_only_where_conditionals_cost_time(monkeypatch: pytest.MonkeyPatch):
    preparation = Preparation()
    preparation.goes_on.set()
    for platform, greedy, count in (("cpu", ANY, 0), ("tpu", GREEDY, 0), ("gpu", GREEDY, 1)):
        monkeypatch.setattr(modes.jax, "default_backend", lambda platform=platform: platform)
        found = modes.for_any_request(ANY)
        assert found.to_warm([request()]) == list(dict.fromkeys([ANY, greedy]))
        assert found.choose([request()], None, preparation) == greedy
        assert found.choose([request(temperature=1.0)], None, preparation) == ANY
        found.close()
        assert len(preparation.keys) == count


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{}], GREEDY),
        ([dict(temperature=1.0, top_p=0.5)] * 2, Sampling(True, True, False, True, 0, False, False)),
        ([dict(temperature=1.0, min_p=0.1)], Sampling(True, True, False, False, 0, False, False)),
        ([dict(top_k=3, top_p=0.5, logprobs=True)], Sampling(False, False, False, False, 1, False, False)),
        ([dict(temperature=1.0), dict(top_logprobs=2)], Sampling(True, False, False, False, 2, None, True)),
    ],
)
def test_requests_of_one_kind_need_no_conditionals(rows: list[dict[str, object]], expected: Sampling):
    assert mode_of(options(**row) for row in rows) == expected
