"""Processes that make automata of forms: for any form they take bounded memory and time, and can be stopped.

There are two, each with a queue. The first ends what takes longer than most forms do, and the second then makes that
from its beginning: a short form waits for moments only, and a long one until it is its turn.
"""

import atexit
import collections
import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from eagle_jax.structured import form_worker
from eagle_jax.structured.byte_automaton import MEMORY, SECONDS, too_large
from eagle_jax.structured.forms import Form
from eagle_jax.structured.json_schema import PLACE_KEYWORD
from eagle_jax.structured.token_automaton import TokenAutomaton

QUICK = 0.3  # seconds of the CPU that a form may take in the first process
QUICK_NICENESS, SLOW_NICENESS = 10, 19  # answers under way go before forms that are still to be made
QUICK_WAITING, SLOW_WAITING = 16, 4  # forms that may wait in each queue; further ones are refused at once
POLL = 0.5  # seconds between two looks at whether to stop
STOPPED = "the form of the answer was not made any more; ask again"


class FormsBusy(RuntimeError):
    """Too many forms are being made; ask again later."""


class FormsStopped(RuntimeError):
    """Nobody waits for this form any more."""


class _Worker:
    """A process that makes automata, one at a time."""

    def __init__(self, niceness: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", form_worker.__file__, str(MEMORY), str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whose threads' memory counts
            process_group=None if os.name == "nt" else 0,  # Ctrl-C is for the program that waits
        )
        self._tokens: Sequence[bytes] | None = None
        self._answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="eagle-jax form worker", daemon=True).start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ask(self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], seconds: float) -> None:
        assert self._process.stdin is not None
        is_same, self._tokens = self._tokens is tokens, tokens
        with contextlib.suppress(OSError):  # it has ended, as the answer will say
            pickle.dump((form, None if is_same else tokens, tuple(stop_ids), seconds), self._process.stdin)
            self._process.stdin.flush()

    def answer(self, seconds: float) -> object:
        """Waits for the answer: None if it would take more than it may. Raises queue.Empty after `seconds`."""
        return self._answers.get(timeout=seconds)

    def end(self) -> None:
        """Ends the process, and its copy that makes one."""
        if self.runs:
            with contextlib.suppress(OSError):
                self._process.kill() if os.name == "nt" else os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stdin is not None
        with self._process.stdout as stream:
            with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError, ValueError):
                while True:
                    self._answers.put(pickle.load(stream))
        self.end()  # where it wrote what cannot be read
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._answers.put(None)


class _Lane:
    """One process and the forms that wait for it, first come, first served.

    Args:
        seconds: CPU seconds that a form may take.
        niceness: niceness of the process.
        waiting: how many may wait.
        stops: whether one that is being made is given up as soon as its request is cancelled.
    """

    def __init__(self, seconds: float, niceness: int, waiting: int, *, stops: bool) -> None:
        self._seconds, self._niceness, self._most_waiting, self._stops = seconds, niceness, waiting, stops
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()  # the first of which is being made
        self._worker: _Worker | None = None

    def make(self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], stopping: threading.Event) -> object:
        """Returns the automaton, or the error that making it raised; None if it would take more than it may."""
        with self._turn(stopping):
            if self._worker is None or not self._worker.runs:
                self._worker = _Worker(self._niceness)
            try:
                self._worker.ask(form, tokens, stop_ids, self._seconds)
                while True:
                    with contextlib.suppress(queue.Empty):
                        return self._worker.answer(POLL)
                    if self._stops and stopping.is_set():
                        raise FormsStopped(STOPPED)
            except BaseException:  # Ctrl-C, too
                self._worker.end()
                raise

    def close(self) -> None:
        """Ends the process."""
        if self._worker is not None:
            self._worker.end()

    @contextlib.contextmanager
    def _turn(self, stopping: threading.Event) -> Iterator[None]:
        """Waits for the process and has it for the block."""
        turn = object()
        with self._changed:
            if len(self._queue) > self._most_waiting:
                raise FormsBusy(f"{self._most_waiting} other forms of answers wait to be made; ask again later")
            self._queue.append(turn)
        try:
            with self._changed:
                while self._queue[0] is not turn:
                    self._changed.wait(POLL)
                    if stopping.is_set():
                        raise FormsStopped(STOPPED)
            yield
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()


class FormWorkers:
    """Makes automata, from any thread."""

    def __init__(self) -> None:
        self._quick = _Lane(QUICK, QUICK_NICENESS, QUICK_WAITING, stops=False)
        self._slow = _Lane(SECONDS, SLOW_NICENESS, SLOW_WAITING, stops=True)
        atexit.register(self.close)

    def make(
        self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], stopping: threading.Event
    ) -> TokenAutomaton:
        """Returns the automaton of a form.

        Args:
            stopping: once it is set, only what is nearly there is waited for.

        Raises:
            ValueError: as `token_automaton` and `Form.automaton` do, and where it would take too much memory or time.
            FormsBusy: too many others wait.
            FormsStopped: `stopping` was set.
        """
        answer = self._quick.make(form, tokens, stop_ids, stopping)
        if answer is None:
            answer = self._slow.make(form, tokens, stop_ids, stopping)
        if answer is None:
            raise too_large(_described(form))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, TokenAutomaton)
        return answer

    def close(self) -> None:
        """Ends the processes."""
        self._quick.close()
        self._slow.close()


def _described(form: Form) -> str:
    """Returns a form in a few words; a schema by its place in the request."""
    text = str(form.value)
    if form.name == "json_schema":
        schema = json.loads(text)
        return str(schema.get(PLACE_KEYWORD, form.name)) if isinstance(schema, dict) else form.name
    return f"{form.name}={text[:57] + '...' if len(text) > 60 else text!r}"
