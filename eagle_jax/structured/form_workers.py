"""Processes that compile forms to automata, in bounded memory and time; they can be stopped.

There are two, each with a queue. The first aborts forms that take longer than most do, and the second compiles those
from the beginning, so short forms never wait for long ones.
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

QUICK_SECONDS = 0.3  # CPU time that a form may take in the first process
QUICK_NICENESS, SLOW_NICENESS = 10, 19  # running answers have priority over forms
QUICK_QUEUE, SLOW_QUEUE = 16, 4  # forms that may wait in each queue; more are rejected
POLL_SECONDS = 0.5  # between two checks whether to stop
STOPPED = "compiling the form of the answer was stopped; ask again"


class FormsBusy(RuntimeError):
    """Too many forms are being compiled; ask again later."""


class FormsStopped(RuntimeError):
    """Compilation of the form was stopped, since nobody waits for it."""


class _Worker:
    """A process that compiles forms, one at a time."""

    def __init__(self, niceness: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", form_worker.__file__, str(MEMORY), str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread's stack counts towards the memory limit
            process_group=None if os.name == "nt" else 0,  # Ctrl-C is not meant for this process
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
        with contextlib.suppress(OSError):  # if the process has ended, the answer is None
            pickle.dump((form, None if is_same else tokens, tuple(stop_ids), seconds), self._process.stdin)
            self._process.stdin.flush()

    def answer(self, seconds: float) -> object:
        """Waits for the answer: None if a limit was exceeded. Raises queue.Empty after `seconds`."""
        return self._answers.get(timeout=seconds)

    def end(self) -> None:
        """Kills the process and its fork."""
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
        self.end()  # it may have written something that cannot be unpickled
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._answers.put(None)


class _Lane:
    """One process and the forms that wait for it, first come, first served.

    Args:
        seconds: CPU seconds that a form may take.
        niceness: niceness of the process.
        max_waiting: forms that may wait.
        stops_running: whether a form that is being compiled is aborted when its request is cancelled.
    """

    def __init__(self, seconds: float, niceness: int, max_waiting: int, *, stops_running: bool) -> None:
        self._seconds, self._niceness, self._max_waiting = seconds, niceness, max_waiting
        self._stops_running = stops_running
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()  # the first entry is being compiled
        self._worker: _Worker | None = None

    def make(self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], stopping: threading.Event) -> object:
        """Returns the automaton, or the error that compiling it raised; None if a limit was exceeded."""
        with self._turn(stopping):
            if self._worker is None or not self._worker.runs:
                self._worker = _Worker(self._niceness)
            try:
                self._worker.ask(form, tokens, stop_ids, self._seconds)
                while True:
                    with contextlib.suppress(queue.Empty):
                        return self._worker.answer(POLL_SECONDS)
                    if self._stops_running and stopping.is_set():
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
        """Waits for its turn and holds the process for the block."""
        turn = object()
        with self._changed:
            if len(self._queue) > self._max_waiting:
                raise FormsBusy(f"{self._max_waiting} other forms of answers wait to be compiled; ask again later")
            self._queue.append(turn)
        try:
            with self._changed:
                while self._queue[0] is not turn:
                    self._changed.wait(POLL_SECONDS)
                    if stopping.is_set():
                        raise FormsStopped(STOPPED)
            yield
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()


class FormWorkers:
    """Compiles forms; may be called from any thread."""

    def __init__(self) -> None:
        self._quick = _Lane(QUICK_SECONDS, QUICK_NICENESS, QUICK_QUEUE, stops_running=False)
        self._slow = _Lane(SECONDS, SLOW_NICENESS, SLOW_QUEUE, stops_running=True)
        atexit.register(self.close)

    def make(
        self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], stopping: threading.Event
    ) -> TokenAutomaton:
        """Returns the automaton of a form.

        Args:
            stopping: once it is set, the call waits only for automata that are nearly complete.

        Raises:
            ValueError: as `token_automaton` and `Form.automaton`, and if it takes too much memory or time.
            FormsBusy: too many forms wait.
            FormsStopped: `stopping` was set.
        """
        answer = self._quick.make(form, tokens, stop_ids, stopping)
        if answer is None:
            answer = self._slow.make(form, tokens, stop_ids, stopping)
        if answer is None:
            raise too_large(_describe(form))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, TokenAutomaton)
        return answer

    def close(self) -> None:
        """Ends the processes."""
        self._quick.close()
        self._slow.close()


def _describe(form: Form) -> str:
    """Describes a form for error messages; a schema by its place in the request."""
    text = str(form.value)
    if form.name == "json_schema":
        schema = json.loads(text)
        return str(schema.get(PLACE_KEYWORD, form.name)) if isinstance(schema, dict) else form.name
    return f"{form.name}={text[:57] + '...' if len(text) > 60 else text!r}"
