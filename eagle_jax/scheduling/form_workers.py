"""Processes that make automata of forms: whatever a form is, it takes bounded memory and time, and can be stopped.

Two work at a time. A form that takes longer than others may be waiting for goes on only while no other one does: some
hostile forms keep one process busy, never both, and forms as most are get their turn in the other.
"""

import atexit
import contextlib
import json
import os
import pathlib
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from eagle_jax.text import form_worker
from eagle_jax.text.byte_automaton import MEMORY, SECONDS, TooLarge, too_large
from eagle_jax.text.forms import Form
from eagle_jax.text.json_schema import ROOT
from eagle_jax.text.token_automaton import TokenAutomaton

PROCESSES = 2
MOST_WAITING = 16  # forms that may wait for a process; further ones are refused at once
PATIENCE = 10.0  # seconds that one waits
QUICK = 0.3  # seconds of the CPU that each may take; then only one at a time goes on
REST, LONGEST_REST = 9.0, 3.0  # times what a form took in vain that its place rests, but no more seconds than that
PAUSE = 0.4  # seconds that the one that goes on pauses after each POLL: two threads may share one core's arithmetic
LEAST_PRIORITY = 19  # of that one
POLL = 0.1  # seconds between two looks at whether to stop
LOOK = 1.0  # of those that wait, which may be many
STOPPED = "the form of the answer was not made any more; ask again"


class FormsBusy(RuntimeError):
    """Too many forms are being made; ask again later."""


class FormsStopped(RuntimeError):
    """Nobody waits for this form any more."""


class _Worker:
    """A process that makes automata, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", form_worker.__file__, str(MEMORY), str(SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whose threads' memory counts
            process_group=None if os.name == "nt" else 0,  # Ctrl-C is for the program that waits
        )
        self._tokens: Sequence[bytes] | None = None
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._maker: int | None = None  # the process that makes the automaton
        self._begun = time.monotonic()
        threading.Thread(target=self._read, name="eagle-jax form worker", daemon=True).start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ask(self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int]) -> None:
        assert self._process.stdin is not None
        known, self._tokens, self._maker = self._tokens is tokens, tokens, None
        with contextlib.suppress(OSError):  # it has ended, as the answer will say
            pickle.dump((form, None if known else tokens, tuple(stop_ids)), self._process.stdin)
            self._process.stdin.flush()

    def answer(self, seconds: float) -> object:
        """Waits for the answer: None if the process ended without one. Raises queue.Empty after `seconds`."""
        message = self._messages.get(timeout=seconds)
        if message == form_worker.READY or isinstance(message, int):
            self._begun = time.monotonic()  # that a process takes to start is not the form's fault
            self._maker = message if isinstance(message, int) else None
            raise queue.Empty
        self._maker = None
        return message

    @property
    def seconds(self) -> float:
        """CPU seconds spent on the current form; wall-clock seconds where the system does not tell."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            ticks = pathlib.Path(f"/proc/{self._maker}/stat").read_text().rpartition(")")[2].split()[11:13]
            return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return 0.0 if self._maker is None else time.monotonic() - self._begun

    def yield_to_others(self) -> None:
        """Lets all else on this machine go first from now on."""
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, self._maker or self._process.pid, LEAST_PRIORITY)

    def pause(self, seconds: float) -> None:
        """Pauses its work for so many seconds, where the system can."""
        if self._maker not in (None, self._process.pid):
            with contextlib.suppress(OSError):
                os.kill(self._maker, signal.SIGSTOP)
                try:
                    time.sleep(seconds)
                finally:
                    os.kill(self._maker, signal.SIGCONT)

    def stop(self) -> bool:
        """Ends what it works on; whether it can be asked again."""
        if self._maker not in (None, self._process.pid):
            self._end_maker()
            with contextlib.suppress(queue.Empty):
                if self._messages.get(timeout=1.0) is None and self.runs:
                    return True
        self.end()
        return False

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._end_maker()

    def _end_maker(self) -> None:
        maker, self._maker = self._maker, None
        if maker is not None:
            with contextlib.suppress(OSError):
                os.kill(maker, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stdin is not None
        with self._process.stdout as stream:
            with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError, ValueError):
                while True:
                    self._messages.put(pickle.load(stream))
        self._process.kill()  # where it wrote what cannot be read
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._messages.put(None)


class FormWorkers:
    """Makes automata, from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free = PROCESSES
        self._idle: list[_Worker] = []
        self._waiting = 0
        self._long = threading.Lock()  # who holds it may take longer than QUICK
        atexit.register(self.close)

    def make(
        self, form: Form, tokens: Sequence[bytes], stop_ids: Sequence[int], stopping: threading.Event
    ) -> TokenAutomaton:
        """The automaton of a form.

        Args:
            stopping: once it is set, only what is nearly there is waited for.

        Raises:
            ValueError: as `token_automaton` and `Form.automaton` do, and where it would take too much memory or time.
            FormsBusy: others are being made.
            FormsStopped: of `stopping`.
        """
        with self._turn(stopping):
            worker = next((one for one in self._take_idle() if one.runs), None) or _Worker()
            try:
                worker.ask(form, tokens, stop_ids)
                answer = self._answer(worker, form, stopping)
            except BaseException:  # Ctrl-C, too
                if worker.stop():
                    self._idle.append(worker)
                raise
            if worker.runs:
                self._idle.append(worker)
            if answer is None:
                raise too_large(_described(form))
            if isinstance(answer, Exception):
                raise answer
        assert isinstance(answer, TokenAutomaton)
        return answer

    def _take_idle(self) -> Iterator[_Worker]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:  # another thread may have been quicker
                return

    def close(self) -> None:
        """Ends the processes that nobody uses."""
        while self._idle:
            self._idle.pop().end()

    @contextlib.contextmanager
    def _turn(self, stopping: threading.Event) -> Iterator[None]:
        """Waits for one of the processes and has it for the block."""
        until = time.monotonic() + PATIENCE
        with self._changed:
            if self._waiting >= MOST_WAITING:
                raise FormsBusy(f"{self._waiting} other forms of answers wait to be made; ask again later")
            self._waiting += 1
            try:
                while not self._free:
                    self._changed.wait(LOOK)
                    if stopping.is_set():
                        raise FormsStopped(STOPPED)
                    if time.monotonic() > until:
                        raise FormsBusy(f"other forms of answers were being made for {PATIENCE:g} s; ask again later")
                self._free -= 1
            finally:
                self._waiting -= 1
        begun = time.monotonic()
        try:
            yield
        except (TooLarge, FormsBusy):
            rest = min(LONGEST_REST, REST * (time.monotonic() - begun))
            self._release_after(0.0 if stopping.is_set() else rest)
            raise
        except BaseException:
            self._release_after(0.0)
            raise
        self._release_after(0.0)

    def _release_after(self, seconds: float) -> None:
        """Gives a place back, after a rest, so that forms which nobody can make take a tenth of a processor at most."""
        if seconds:
            timer = threading.Timer(seconds, self._release_after, (0.0,))
            timer.daemon = True
            timer.start()
            return
        with self._changed:
            self._free += 1
            self._changed.notify()

    def _answer(self, worker: _Worker, form: Form, stopping: threading.Event) -> object:
        until, is_long = time.monotonic() + SECONDS, False
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return worker.answer(POLL)
                if time.monotonic() > until:
                    raise too_large(_described(form))
                is_slow = worker.seconds > QUICK
                if is_slow and stopping.is_set():
                    raise FormsStopped(STOPPED)
                if is_slow and not is_long:
                    is_long = self._long.acquire(blocking=False)
                    if not is_long:
                        raise FormsBusy(
                            f"the form of the answer takes more than {QUICK:g} s to make while another such one is "
                            "made; use smaller counts, or ask again later"
                        )
                    worker.yield_to_others()
                if is_long:
                    worker.pause(PAUSE)
        finally:
            if is_long:
                self._long.release()


def _described(form: Form) -> str:
    """A form in a few words; a schema by its place in the request."""
    text = str(form.value)
    if form.name == "json_schema":
        schema = json.loads(text)
        return str(schema.get(ROOT, form.name)) if isinstance(schema, dict) else form.name
    return f"{form.name}={text[:57] + '...' if len(text) > 60 else text!r}"
