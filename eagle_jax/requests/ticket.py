"""A handle on one request of an engine."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from eagle_jax.requests.request import NO_OUTPUT, PartialOutput, Request
from eagle_jax.requests.results import Chunk, Result
from eagle_jax.requests.text_streamer import TextStreamer


class EngineError(RuntimeError):
    """The engine failed; the request itself was valid."""


class QueueFull(RuntimeError):
    """The queue is full; try again later."""


class EngineClosed(RuntimeError):
    """The engine was closed or has failed, and accepts no requests."""


def refuse_full_queue(waiting: int, added: int, max_queue: int) -> None:
    """Raises QueueFull if `added` requests do not fit into the queue."""
    if waiting + added > max_queue:
        raise QueueFull(
            f"{waiting} of {max_queue} places in the queue are taken and {added} are requested; ask again later"
        )


class Answer(NamedTuple):
    """State of an answer: its output so far, and its result or the error that ended it."""

    output: PartialOutput = NO_OUTPUT
    result: Result | None = None
    error: EngineError | None = None

    @property
    def is_complete(self) -> bool:
        return self.result is not None or self.error is not None


class Ticket:
    """The growing answer to one request; it may be read from any thread, and from asyncio:

        for chunk in ticket: ...
        async for chunk in ticket: ...
        result = ticket.result()

    Slow readers lose nothing and block nobody: the next chunk has all new output. `chunks` and `achunks` follow several
    tickets.

    Attributes:
        request: the request.
        waited: seconds in the queue; None while it is queued.
        to_first: seconds from submission to the first token; None before it.
        seconds: seconds from submission to the end; None before it.
    """

    def __init__(self, request: Request, tokenizer: Any, on_cancel: Callable[["Ticket"], None]):
        self.request, self.tokenizer = request, tokenizer
        self.waited: float | None = None
        self.to_first: float | None = None
        self.seconds: float | None = None
        self.cancelled = False
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []
        self.latest = Answer()

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self.latest.is_complete

    def cancel(self) -> None:
        """Ends the answer with `finish_reason` "cancelled" and frees its row; a complete answer does not change."""
        self.cancelled = True
        self._on_cancel(self)

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the answer.

        Raises:
            TimeoutError: the answer takes longer than `timeout` seconds; it is not cancelled.
            EngineError: the engine failed.
        """
        changed = threading.Event()
        deadline = None if timeout is None else time.perf_counter() + timeout
        with self.waking(changed.set):
            while True:
                changed.clear()
                result = self._result_if_complete()
                if result is not None:
                    return result
                remaining = None if deadline is None else deadline - time.perf_counter()
                if remaining is not None and remaining <= 0 or not changed.wait(remaining):
                    raise TimeoutError(
                        f"no answer after {timeout} seconds; the request is still running, cancel() ends it"
                    )

    async def aresult(self) -> Result:
        """Waits for the answer as `result` does, for asyncio."""
        changed = asyncio.Event()
        with self.waking(_threadsafe_setter(changed)):
            while True:
                changed.clear()
                result = self._result_if_complete()
                if result is not None:
                    return result
                await changed.wait()

    def _result_if_complete(self) -> Result | None:
        """Returns the answer if it is complete; raises the error that ended it."""
        if self.latest.error is not None:
            raise self.latest.error
        return self.latest.result

    def __iter__(self) -> Iterator[Chunk]:
        return chunks([self])

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return achunks([self])

    @contextlib.contextmanager
    def waking(self, waker: Callable[[], None]) -> Iterator[None]:
        """Calls `waker` after every `update`, on the engine's thread."""
        with self._lock:
            self._wakers.append(waker)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(waker)

    def begin(self) -> None:
        """Records the time in the queue; called by the engine when the request leaves it."""
        self.waited = time.perf_counter() - self.request.submitted

    def update(self, output: PartialOutput, result: Result | None = None, error: EngineError | None = None) -> None:
        """Stores the state of the answer and wakes its readers; called by the engine."""
        now = time.perf_counter() - self.request.submitted
        if self.to_first is None and output.token_ids:
            self.to_first = now
        latest = Answer(output, result, error)
        if latest.is_complete:
            self.seconds = now
        self.latest = latest  # set last: readers of a complete answer expect the times
        with self._lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker()


def chunks(tickets: Sequence[Ticket], *, by_step: bool = False) -> Iterator[Chunk]:
    """Yields the chunks of several tickets as they arrive; `index` is the index in `tickets`.

    Args:
        by_step: whether to yield one chunk per step.

    Raises:
        EngineError: the engine failed.
    """
    changed, reader = threading.Event(), _Reader(tickets, by_step)
    with contextlib.ExitStack() as stack:
        for ticket in tickets:
            stack.enter_context(ticket.waking(changed.set))
        while True:
            changed.clear()
            yield from reader.new_chunks()
            if reader.over:
                return
            changed.wait()


async def achunks(tickets: Sequence[Ticket], *, by_step: bool = False) -> AsyncIterator[Chunk]:
    """Yields the chunks of several tickets as `chunks` does, for asyncio."""
    changed, reader = asyncio.Event(), _Reader(tickets, by_step)
    with contextlib.ExitStack() as stack:
        for ticket in tickets:
            stack.enter_context(ticket.waking(_threadsafe_setter(changed)))
        while True:
            changed.clear()
            for chunk in reader.new_chunks():
                yield chunk
            if reader.over:
                return
            await changed.wait()


def _threadsafe_setter(changed: asyncio.Event) -> Callable[[], None]:
    """Returns a function that sets an event of the running loop from any thread."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits in a closed loop
            loop.call_soon_threadsafe(changed.set)

    return wake


class _Reader:
    """Turns new output of several tickets into chunks."""

    def __init__(self, tickets: Sequence[Ticket], by_step: bool):
        self._tickets, self._by_step = tickets, by_step
        self._streamers = [
            TextStreamer(index, ticket.tokenizer, ticket.request.prompt, ticket.request.options.stop)
            for index, ticket in enumerate(tickets)
        ]

    @property
    def over(self) -> bool:
        return all(streamer.finished for streamer in self._streamers)

    def new_chunks(self) -> Iterator[Chunk]:
        for ticket, streamer in zip(self._tickets, self._streamers, strict=True):
            if not streamer.finished:
                latest = ticket.latest
                if latest.error is not None:
                    raise latest.error
                yield from streamer.chunks(latest.output, latest.result, by_step=self._by_step)
