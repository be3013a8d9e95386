"""Automata are made in processes of their own: bounded in memory and time, stopped at once, in nobody's way."""

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from speller import END, TOKENIZER

from eagle_jax.serving.service import FORM_THREADS
from eagle_jax.structured import automaton_cache, form_workers
from eagle_jax.structured.form_workers import FormsBusy, FormsStopped, FormWorkers
from eagle_jax.structured.forms import Form
from eagle_jax.structured.token_automaton import token_automaton
from eagle_jax.text.token_bytes import token_bytes

TOKENS = token_bytes(TOKENIZER, 272)
ENDLESS = Form("regex", "(a|b)*a(a|b){40}")  # some ten seconds to a GiB
SMALL = Form("regex", "[a-z]{2}[0-9]")
NEVER = threading.Event()


@pytest.fixture
def workers() -> Iterator[FormWorkers]:
    workers = FormWorkers()
    yield workers
    workers.close()


def test_the_automaton_is_the_one_that_this_process_makes(workers: FormWorkers):
    for form in (SMALL, Form("choices", ("a", "ab")), Form("json_schema", '{"type": "integer"}', ("x ", " y"))):
        made, expected = workers.make(form, TOKENS, [END], NEVER), token_automaton(form.automaton(), TOKENS, [END])
        for name in ("token_class", "next", "mask_of_state", "masks"):
            np.testing.assert_array_equal(getattr(made, name), getattr(expected, name))
    with pytest.raises(ValueError, match="is not supported .*Rust's regex"):
        workers.make(Form("regex", "("), TOKENS, [END], NEVER)


def test_memory_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("MEMORY", 200 * 2**20), ("SECONDS", 0.5)):
        with monkeypatch.context() as patch:
            patch.setattr(form_workers, name, value)
            workers, start = FormWorkers(), time.monotonic()
            with pytest.raises(ValueError, match="too large"):
                workers.make(ENDLESS, TOKENS, [END], NEVER)
            assert time.monotonic() - start < 10
            assert workers.make(SMALL, TOKENS, [END], NEVER).next.size, "the next one has a process again"
            workers.close()


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C, where a shell has this process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def group_of(process: int) -> list[pathlib.Path]:
    """The processes of a group that have not ended, by their folders in /proc."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == process and state != "Z":
                found.append(stat.parent)
    return found


def test_ctrl_c_ends_the_process_that_makes_one(workers: FormWorkers, heeded: None):
    workers.make(SMALL, TOKENS, [END], NEVER)
    process, groups = workers._quick._worker._process.pid, []

    def interrupt() -> None:
        groups.append(group_of(process))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.15, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        workers.make(ENDLESS, TOKENS, [END], NEVER)
    assert len(groups[0]) == 2, "the worker and its copy"
    until = time.monotonic() + 5
    while group_of(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert not group_of(process)
    assert workers.make(SMALL, TOKENS, [END], NEVER).next.size


def test_slow_forms_wait_for_one_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form_workers, "QUICK_SECONDS", 0.1)
    workers = FormWorkers()
    slow = [Form("json_schema", f'{{"type": "string", "maxLength": {1700 + i}}}') for i in range(3)]  # 0.5 s each
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda form: workers.make(form, TOKENS, [END], NEVER), slow))
    assert [len(one.next) for one in made] == [17_003, 17_013, 17_023]
    workers.close()


def test_hostile_forms_leave_a_process_to_others(workers: FormWorkers):
    stopping, ends = threading.Event(), []

    def ask() -> None:
        try:
            workers.make(ENDLESS, TOKENS, [END], stopping)
        except Exception as error:
            ends.append(type(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(ends) < 3:
        time.sleep(0.05)
    assert ends == [FormsBusy] * 3, "one is made, four wait"
    assert workers.make(SMALL, TOKENS, [END], NEVER).next.size
    start = time.monotonic()
    stopping.set()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 5 and ends[3:] == [FormsStopped] * 5


def test_only_so_many_wait(workers: FormWorkers):
    workers._quick._queue.extend(range(form_workers.QUICK_QUEUE + 1))
    with pytest.raises(FormsBusy, match="16 other forms of answers wait to be compiled; ask again later"):
        workers.make(SMALL, TOKENS, [END], NEVER)
    workers._quick._queue.pop()
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(FormsStopped):
        workers.make(SMALL, TOKENS, [END], stopping)
    assert len(workers._quick._queue) == form_workers.QUICK_QUEUE
    different = form_workers.QUICK_QUEUE + form_workers.SLOW_QUEUE + 2
    assert FORM_THREADS > 2 * different, "a server has threads for these, and for clients that wait for one of them"


def test_requests_with_the_same_form_wait_for_one_that_makes_it():
    made, cache = token_automaton(SMALL.automaton(), TOKENS, [END]), automaton_cache._AutomatonCache()
    begun, goes_on, calls = threading.Event(), threading.Event(), []

    def make(error: Exception | None = None):
        calls.append(error)
        begun.set()
        goes_on.wait(5)
        if error is not None:
            raise error
        return made

    for error in (None, ValueError("it is too large"), FormsStopped("not now")):
        begun.clear(), goes_on.clear(), calls.clear()
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(cache.get, error, lambda: make(error), TOKENIZER, NEVER)
            assert begun.wait(5)
            others = [pool.submit(cache.get, error, make, TOKENIZER, NEVER) for _ in range(2)]
            stopped = threading.Event()
            stopped.set()
            with pytest.raises(FormsStopped):
                cache.get(error, make, TOKENIZER, stopped)
            goes_on.set()
            if error is None:
                assert first.result() == (made, False) and all(other.result() == (made, True) for other in others)
            else:
                assert first.exception() is error
            if isinstance(error, ValueError):
                assert all(other.exception() is error for other in others)
            if isinstance(error, FormsStopped):  # of the first one's engine: another one makes it
                assert sorted(other.result()[1] for other in others) == [False, True]
        assert len(calls) == (2 if isinstance(error, FormsStopped) else 1)
