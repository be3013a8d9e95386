"""Automata are made in processes of their own: bounded in memory and time, stopped at once, in nobody's way."""

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

from eagle_jax.scheduling import form_workers, structured
from eagle_jax.scheduling.form_workers import FormsBusy, FormsStopped, FormWorkers
from eagle_jax.text.forms import Form
from eagle_jax.text.token_automaton import token_automaton
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
    with pytest.raises(ValueError, match="cannot be followed .*Rust's regex"):
        workers.make(Form("regex", "("), TOKENS, [END], NEVER)


def test_memory_and_time_are_bounded(workers: FormWorkers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form_workers, "MEMORY", 200 * 2**20)
    with pytest.raises(ValueError, match="too large"):
        workers.make(ENDLESS, TOKENS, [END], NEVER)
    assert workers.make(SMALL, TOKENS, [END], NEVER).next.size, "the next one has a process again"
    workers.close()
    monkeypatch.setattr(form_workers, "MEMORY", 2**30)
    monkeypatch.setattr(form_workers, "SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(ValueError, match="too large"):
        workers.make(ENDLESS, TOKENS, [END], NEVER)
    assert time.monotonic() - start < 5


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C, where a shell has this process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_process_that_makes_one(workers: FormWorkers, heeded: None):
    workers.make(SMALL, TOKENS, [END], NEVER)
    (worker,), makers = workers._idle, []

    def interrupt() -> None:
        makers.append(worker._maker)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.5, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        workers.make(ENDLESS, TOKENS, [END], NEVER)
    assert makers[0] is not None and not pathlib.Path(f"/proc/{makers[0]}").exists()
    assert workers.make(SMALL, TOKENS, [END], NEVER).next.size and workers._idle == [worker]


def test_hostile_forms_leave_a_process_to_others(workers: FormWorkers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form_workers, "REST", 0.0)
    stopping, ends = threading.Event(), []

    def ask() -> None:
        try:
            workers.make(ENDLESS, TOKENS, [END], stopping)
        except Exception as error:
            ends.append(type(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert workers.make(SMALL, TOKENS, [END], NEVER).next.size
    while len(ends) < 2:  # the one that may go on is among the others
        time.sleep(0.05)
    assert set(ends) == {FormsBusy}
    start = time.monotonic()
    stopping.set()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 3 and ends.count(FormsStopped) >= 1


def test_a_place_rests_after_a_form_that_nobody_can_make(workers: FormWorkers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form_workers, "MEMORY", 200 * 2**20)
    monkeypatch.setattr(form_workers, "LONGEST_REST", 0.5)
    with pytest.raises(ValueError, match="too large"):
        workers.make(ENDLESS, TOKENS, [END], NEVER)
    assert workers._free == form_workers.PROCESSES - 1
    time.sleep(0.7)
    assert workers._free == form_workers.PROCESSES


def test_only_so_many_wait(workers: FormWorkers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form_workers, "PATIENCE", 0.3)
    workers._free = 0
    with pytest.raises(FormsBusy, match="for 0.3 s; ask again later"):
        workers.make(SMALL, TOKENS, [END], NEVER)
    workers._waiting = form_workers.MOST_WAITING
    with pytest.raises(FormsBusy, match="16 other forms of answers wait"):
        workers.make(SMALL, TOKENS, [END], NEVER)


def test_requests_with_the_same_form_wait_for_one_that_makes_it():
    made, kept = token_automaton(SMALL.automaton(), TOKENS, [END]), structured._Kept()
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
            first = pool.submit(kept.get, error, lambda: make(error), TOKENIZER, NEVER)
            assert begun.wait(5)
            others = [pool.submit(kept.get, error, make, TOKENIZER, NEVER) for _ in range(2)]
            stopped = threading.Event()
            stopped.set()
            with pytest.raises(FormsStopped):
                kept.get(error, make, TOKENIZER, stopped)
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
