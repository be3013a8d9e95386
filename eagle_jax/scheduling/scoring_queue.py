"""Prompts that an engine scores between two steps of its batch."""

import collections
import concurrent.futures
import dataclasses
import logging
import threading

from eagle_jax.converters.errors import in_a_line
from eagle_jax.loading.model import Model
from eagle_jax.requests.request import NO_OUTPUT
from eagle_jax.requests.results import CANCELLED, PromptLogprobs, Result
from eagle_jax.requests.ticket import EngineError, Ticket
from eagle_jax.scheduling.row import Row, result_of
from eagle_jax.scheduling.scoring import Scoring
from eagle_jax.scheduling.sizes import chunk_tokens, padded_batch_size

log = logging.getLogger("eagle_jax.scheduling")
COMPILING_SECONDS = 0.05  # that an engine with nothing else to do waits for a program before it looks for new requests


class ScoringQueue:
    """Tickets whose prompts are scored on the engine's thread, some chunks at a time.

    A program for prompts of another size is compiled on a thread of its own, so that answers do not wait for it. What
    fails, fails for its own tickets alone.

    Args:
        model: from `load`.
        changed: the engine's lock.
        tokens: tokens of a prompt that are read before running answers get their next steps.

    Attributes:
        waiting: tickets that were not begun; changed under the engine's lock.
    """

    def __init__(self, model: Model, changed: threading.Condition, tokens: int):
        self._model, self._changed = model, changed
        self._chunks = max(1, tokens // chunk_tokens())
        self.waiting: collections.deque[Ticket] = collections.deque()
        self._current: list[Ticket] = []
        self._scoring: Scoring | None = None
        self._compiling: concurrent.futures.Future[None] | None = None
        self._compiler = concurrent.futures.ThreadPoolExecutor(1, "eagle-jax compiling")

    @property
    def tickets(self) -> list[Ticket]:
        """All that are unfinished."""
        return [*self.waiting, *self._current]

    def cancel(self, ticket: Ticket) -> None:
        """Ends a ticket, on any thread; one that was begun ends before the next chunk."""
        with self._changed:
            waits = ticket in self.waiting
            if waits:
                self.waiting.remove(ticket)
        if waits:
            ticket.update(NO_OUTPUT, _result(ticket, None))

    def step(self, *, idle: bool) -> None:
        """Reads some chunks; `idle`: the engine has nothing else to do."""
        try:
            if all(ticket.cancelled for ticket in self._current):
                self._end({ticket: _result(ticket, None) for ticket in self._current})
                self._begin()
            if self._scoring is None or not self._is_compiled(idle):
                return
            self._scoring.read(self._chunks)
            if not self._scoring.num_unread:
                scored = zip(self._current, self._scoring.results(), strict=True)
                self._end({ticket: _result(ticket, logprobs) for ticket, logprobs in scored})
        except Exception as error:  # any error is reported to the waiting callers
            log.error("the engine failed at %d prompts", len(self._current), exc_info=error)
            failed = EngineError(f"the engine failed at this prompt, {in_a_line(error)}; ask again")
            self._end({ticket: failed for ticket in self._current})

    def fail(self, error: EngineError) -> None:
        """Ends all tickets: the engine cannot go on."""
        with self._changed:
            tickets = self.tickets
            self.waiting.clear()
        self._end({ticket: error for ticket in tickets})

    def close(self) -> None:
        """Begins to compile nothing more."""
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Starts scoring the next prompts, as many as a batch holds."""
        with self._changed:
            while self.waiting and len(self._current) < padded_batch_size(self._model, 1):
                self._current.append(self.waiting.popleft())
        for ticket in self._current:
            ticket.begin()
        if self._current:
            self._scoring = Scoring(self._model, [ticket.request for ticket in self._current])
            self._compiling = self._compiler.submit(self._scoring.prepare)

    def _is_compiled(self, idle: bool) -> bool:
        if self._compiling is not None:
            try:
                self._compiling.result(COMPILING_SECONDS if idle else 0.0)
            except TimeoutError:
                return False
            self._compiling = None
        return True

    def _end(self, outcomes: dict[Ticket, Result | EngineError]) -> None:
        self._current, self._scoring, self._compiling = [], None, None
        for ticket, outcome in outcomes.items():
            if isinstance(outcome, Result):
                ticket.update(NO_OUTPUT, outcome)
            else:
                ticket.update(NO_OUTPUT, error=outcome)


def _result(ticket: Ticket, scored: PromptLogprobs | None) -> Result:
    """Returns the result of a scored prompt, without new tokens; `scored` is None if it was cancelled."""
    result = result_of(Row(ticket.request), ticket.tokenizer, 0)
    if scored is None:
        return dataclasses.replace(result, finish_reason=CANCELLED)
    return dataclasses.replace(result, prompt_logprobs=scored)
