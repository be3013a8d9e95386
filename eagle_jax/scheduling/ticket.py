"""What the one who asked holds in hand while an engine answers."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from eagle_jax.scheduling.batch import SILENCE, Ask, Said
from eagle_jax.scheduling.results import Chunk, Result
from eagle_jax.scheduling.text_streamer import Telling

CANCELLED = "cancelled"


class EngineError(RuntimeError):
    """The engine could not make the answer; the request itself was in order."""


class Ticket:
    """One request that an engine took. It is told what there is of the answer; from any thread, and from asyncio:

        for chunk in ticket: ...
        async for chunk in ticket: ...
        result = ticket.result()

    Who reads slowly misses nothing and holds nothing up: what came meanwhile is in the next chunk. `chunks` and
    `achunks` follow several tickets at once.

    Attributes:
        ask: the request.
        waited: seconds in the queue; None while it waits.
        to_first: seconds to the first token, the queue included; None before.
        seconds: from asking to the end; None before.
    """

    def __init__(self, ask: Ask, tokenizer: Any, on_cancel: Callable[["Ticket"], None]):
        self.ask, self.tokenizer = ask, tokenizer
        self.waited: float | None = None
        self.to_first: float | None = None
        self.seconds: float | None = None
        self.cancelled = False
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []
        self.news: tuple[Said, Result | None, EngineError | None] = (SILENCE, None, None)

    @property
    def over(self) -> bool:
        """Whether there is a result, or an error."""
        return self.news[1:] != (None, None)

    def cancel(self) -> None:
        """Ends the answer where it is, with `finish_reason` "cancelled"; its place is free for others at once. Of an
        answer that is over it changes nothing.
        """
        self.cancelled = True
        self._on_cancel(self)

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the answer.

        Raises:
            TimeoutError: it takes longer than `timeout` seconds; it is not cancelled.
            EngineError: the engine failed while it made this answer.
        """
        changed = threading.Event()
        until = None if timeout is None else time.perf_counter() + timeout
        with self.waking(changed.set):
            while True:
                changed.clear()
                result = self._settled()
                if result is not None:
                    return result
                left = None if until is None else until - time.perf_counter()
                if left is not None and left <= 0 or not changed.wait(left):
                    raise TimeoutError(f"no answer after {timeout} seconds; it goes on, cancel() ends it")

    async def aresult(self) -> Result:
        """`result` for asyncio."""
        changed = asyncio.Event()
        with self.waking(_soon(changed)):
            while True:
                changed.clear()
                result = self._settled()
                if result is not None:
                    return result
                await changed.wait()

    def _settled(self) -> Result | None:
        """The answer if it is complete; raises what ended it instead."""
        _, result, error = self.news
        if error is not None:
            raise error
        return result

    def __iter__(self) -> Iterator[Chunk]:
        return chunks([self])

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return achunks([self])

    @contextlib.contextmanager
    def waking(self, waker: Callable[[], None]) -> Iterator[None]:
        """Calls `waker` whenever there is news, on the engine's thread."""
        with self._lock:
            self._wakers.append(waker)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(waker)

    def begin(self) -> None:
        """The engine's: it left the queue."""
        self.waited = time.perf_counter() - self.ask.asked

    def tell(self, said: Said, result: Result | None = None, error: EngineError | None = None) -> None:
        """The engine's: this is all there is of the answer now."""
        now = time.perf_counter() - self.ask.asked
        if self.to_first is None and said.token_ids:
            self.to_first = now
        if result is not None or error is not None:
            self.seconds = now
        self.news = said, result, error
        with self._lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker()


def chunks(tickets: Sequence[Ticket], *, by_pass: bool = False) -> Iterator[Chunk]:
    """What several tickets are told, as it comes; `index` is the place in `tickets`.

    Args:
        by_pass: a chunk of its own for what came with each pass of the target.

    Raises:
        EngineError: the engine failed while it made one of the answers.
    """
    changed, following = threading.Event(), _Following(tickets, by_pass)
    with contextlib.ExitStack() as stack:
        for ticket in tickets:
            stack.enter_context(ticket.waking(changed.set))
        yield from following.news()
        while not following.over:
            changed.wait()
            changed.clear()
            yield from following.news()


async def achunks(tickets: Sequence[Ticket], *, by_pass: bool = False) -> AsyncIterator[Chunk]:
    """`chunks` for asyncio."""
    changed, following = asyncio.Event(), _Following(tickets, by_pass)
    with contextlib.ExitStack() as stack:
        for ticket in tickets:
            stack.enter_context(ticket.waking(_soon(changed)))
        for chunk in following.news():
            yield chunk
        while not following.over:
            await changed.wait()
            changed.clear()
            for chunk in following.news():
                yield chunk


def _soon(changed: asyncio.Event) -> Callable[[], None]:
    """Sets an event of this thread's loop from any thread."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # a loop that is closed waits for nothing
            loop.call_soon_threadsafe(changed.set)

    return wake


class _Following:
    """What of several tickets was passed on already."""

    def __init__(self, tickets: Sequence[Ticket], by_pass: bool):
        self._tickets, self._by_pass = tickets, by_pass
        self._tellings = [
            Telling(index, ticket.tokenizer, ticket.ask.options.stop) for index, ticket in enumerate(tickets)
        ]

    @property
    def over(self) -> bool:
        return all(telling.over for telling in self._tellings)

    def news(self) -> Iterator[Chunk]:
        for ticket, telling in zip(self._tickets, self._tellings, strict=True):
            if not telling.over:
                said, result, error = ticket.news
                if error is not None:
                    raise error
                yield from telling.chunks(said, result, by_pass=self._by_pass)
