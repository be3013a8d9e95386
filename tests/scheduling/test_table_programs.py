"""Programs for large forms are compiled beside the batch: the request waits for them, running answers do not."""

import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
from speller import DYNAMIC, SPELLED, SPELLER, asked

from eagle_jax.api import Engine, EngineError, generate
from eagle_jax.scheduling import programs
from eagle_jax.sharding import sharding_of
from eagle_jax.structured.table_sizes import TableSizes, sizes_for, smallest_covering

LARGE = {"choices": ["abcd", "X" * 3000]}  # some 3,000 states
ROOM = dict(rows=2, max_tokens=48, steps=2, **DYNAMIC)


class Compiler:
    """Stands before `programs.ready`, and keeps programs for 4,096 states from being compiled until it may go on."""

    def __init__(self, ready: Callable):
        self.ready, self.begun, self.goes_on = ready, threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, function: object, *args: object, **fixed: object):
        leaves = [leaf for arg in programs._flat_args(args) for leaf in jax.tree.leaves(arg)]
        if any(4096 in np.shape(leaf) for leaf in leaves):
            self.begun.set()
            assert self.goes_on.wait(60.0)
            if self.error is not None:
                raise self.error
        return self.ready(function, *args, **fixed)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    compiler = Compiler(programs.ready)
    monkeypatch.setattr(programs, "ready", compiler)
    yield compiler
    compiler.goes_on.set()


@pytest.mark.proof
def test_other_requests_go_on_while_a_program_for_a_large_form_is_compiled(compiler: Compiler):
    with Engine(SPELLER, **ROOM) as engine:
        large = engine.submit(asked("?"), **LARGE)
        assert compiler.begun.wait(60.0)
        assert engine.submit(asked("Spell!")).result(60.0).text == SPELLED
        chunks = list(engine.submit(asked("Spell!"), choices=["abc", "abd"]))
        assert chunks[-1].result.text == "abc" and not large.over
        compiler.goes_on.set()
        compiled, expected = large.result(60.0), generate(SPELLER, asked("?"), **LARGE, **DYNAMIC)
        assert compiled.token_ids == expected.token_ids and compiled.text == "abcd"
        assert compiled.stats.compile_seconds == 0, "nothing was compiled on the engine's thread"
        before = programs.compiled()
        assert engine.submit(asked("?"), **LARGE).result(60.0).text == compiled.text and programs.compiled() == before


@pytest.mark.proof
def test_a_program_that_cannot_be_compiled_costs_its_own_request(compiler: Compiler):
    compiler.error = RuntimeError("RESOURCE_EXHAUSTED")
    with Engine(SPELLER, **ROOM) as engine:
        large = engine.submit(asked("?"), **LARGE)
        cancelled = engine.submit(asked("?"), **LARGE)
        assert compiler.begun.wait(60.0)
        cancelled.cancel()
        assert cancelled.result(60.0).finish_reason == "cancelled"
        compiler.goes_on.set()
        with pytest.raises(EngineError, match="RESOURCE_EXHAUSTED; ask again"):
            large.result(60.0)
        compiler.error = None
        assert engine.submit(asked("Spell!")).result(60.0).text == SPELLED
        assert engine.submit(asked("?"), **LARGE).result(60.0).text == "abcd"


@pytest.mark.proof
def test_more_forms_at_a_time_than_one_program_takes():
    with Engine(SPELLER, **ROOM | {"rows": 6}) as engine:
        tickets = [engine.submit(asked("?"), choices=["abc" + "x" * i]) for i in range(6)]
        assert [ticket.result(120.0).text for ticket in tickets] == ["abc" + "x" * i for i in range(6)]
        assert [ticket.result().stats.compile_seconds for ticket in tickets] == [0.0] * 6


@pytest.mark.proof
def test_over_a_mesh():
    sharding = sharding_of("model:2", SPELLER.target.config)
    model = SPELLER.__class__(
        sharding.put(SPELLER.target, sharding.target), None, SPELLER.tokenizer, SPELLER.stop_ids, 56, sharding=sharding
    )
    with Engine(model, rows=2, max_tokens=48, drafter="none") as engine:
        result = engine.submit(asked("?"), **LARGE).result(120.0)
    assert result.text == "abcd" and result.stats.compile_seconds == 0


def test_sizes():
    words = [((1, 2), (3, 4, 5)), tuple((i,) for i in range(20)), tuple((i, 0) for i in range(9))]
    needed = sizes_for(words, [None, None])
    assert needed == TableSizes(words=16) and not TableSizes().covers(needed)
    ready = [TableSizes(words=64, states=4096), TableSizes(words=16, states=4096), TableSizes()]
    assert smallest_covering(ready, needed) == ready[1] and smallest_covering(ready, TableSizes()) == ready[2]
    assert smallest_covering(ready, TableSizes(masks=256)) == TableSizes(masks=256)
