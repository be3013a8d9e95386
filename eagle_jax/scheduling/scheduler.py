"""Requests in, events out: one scheduler drives batches for `generate`, `stream`, jobs, traces and servers."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.requests.request import DUMMY_OPTIONS, NO_OUTPUT, PartialOutput, Request
from eagle_jax.requests.results import CANCELLED, Result
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import BatchShape
from eagle_jax.scheduling.chunked_prefill import ChunkedPrefill
from eagle_jax.scheduling.measured import Measured
from eagle_jax.scheduling.modes import Modes
from eagle_jax.scheduling.prefix_cache import PrefixCache
from eagle_jax.scheduling.row import Row, result_of
from eagle_jax.scheduling.sizes import chunk_tokens
from eagle_jax.scheduling.table_programs import TablePrograms

MAX_STEPS = 2**30  # steps are counted in 32 bits; after so many a batch is begun anew as soon as it is idle


@dataclasses.dataclass(frozen=True)
class Event:
    """New output of one request.

    Attributes:
        id: what `Scheduler.submit` returned.
        request: the request.
        output: its answer so far.
        result: the complete answer; None before.
        error: the error of its prefill; no event follows.
    """

    id: int
    request: Request
    output: PartialOutput
    result: Result | None = None
    error: Exception | None = None


class Scheduler:
    """Runs requests through the rows of a batch; each answer is the same as if its request ran alone.

    `submit` queues a request; `step` prefills or decodes, and returns events; a finished request makes room for
    the next one in the queue.

    Args:
        model: from `load`.
        drafter: drafter for all requests.
        shape: shape of the batch, which every request must fit.
        steps: steps between two polls. None polls when answers are complete, and reports only those.
        prefill_chunks: prompt chunks that are read, one request at a time, before running answers get their next
            steps. None reads whole prompts, several at a time, which is faster if all requests are there already.
        prefix_cache_bytes: budget of `prefixes`; with `prefill_chunks`.
        measured, modes: see `Batch`; `drafter` is the drafter of `measured` with the deepest trees.

    Attributes:
        shape: shape of the batch.
        prefixes: cache of prompt prefixes.
        tables: programs for requests whose adjustments of logits need larger tables; with `prefill_chunks`.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        shape: BatchShape,
        *,
        steps: int | None = None,
        prefill_chunks: int | None = None,
        prefix_cache_bytes: int = 0,
        measured: Measured | None = None,
        modes: Modes | None = None,
    ):
        self._modes = modes or Modes(shape.mode)
        self.model, self.drafter, self.shape, self.measured = model, drafter, shape, measured
        self._steps, self._chunks = steps, prefill_chunks
        self.prefixes, self.tables = PrefixCache(prefix_cache_bytes), TablePrograms()
        self._ids = itertools.count()
        self._queue: collections.deque[tuple[int, Request]] = collections.deque()
        self._batch: Batch | None = None
        self._running: dict[int, int] = {}  # row index -> id
        self._reported: dict[int, int] = {}  # row index -> tokens
        self._reading: tuple[int, Request, ChunkedPrefill] | None = None
        self._cancelled: set[int] = set()
        self._decode_next = False
        self.restart()

    def submit(self, request: Request) -> int:
        """Queues a request. Returns the id that its events carry."""
        id = next(self._ids)
        self._queue.append((id, request))
        return id

    def is_ready(self, request: Request) -> bool:
        """Returns whether the programs for a request are compiled, or starts compiling. Raises as `cover` does."""
        assert self._batch is not None
        queued = [*self._queue, *([self._reading[:2]] if self._reading else [])]
        running = [self._batch.rows[row_index].request for row_index in self._running]
        return self.tables.cover([*running, *(other for _, other in queued), request], self._batch)

    def cancel(self, id: int) -> None:
        """Ends a request where it is; its last event has a result with `finish_reason` "cancelled"."""
        self._cancelled.add(id)

    def step(self) -> list[Event]:
        """Prefills requests that have a row, or runs steps of the loop; returns the events.

        New first tokens are returned before the next steps are run. After an error the batch is lost: `restart`.
        """
        events = self._end_cancelled()
        if not self._decode_next:
            self._decode_next = True
            self._prefill_at_once() if self._chunks is None else self._prefill_chunks(events)
            events += self._new_events()
            if events:  # rows that became free are filled first, as after an answer of one token
                self._decode_next = self._chunks is not None or not self._queue or len(self._running) == self.shape.rows
                return events
        self._decode_next = False
        if self._batch is not None and any(not self._batch.rows[row_index].done for row_index in self._running):
            self._batch.decode(self._steps, finished=1 if self._chunks else None if self._steps else self._batch.group)
        return events + self._new_events()

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._queue or self._running or self._reading)

    @property
    def num_free_rows(self) -> int:
        """Requests that could be submitted now without waiting for another to finish."""
        return self.shape.rows - len(self._running) - len(self._queue) - (self._reading is not None)

    @property
    def row_steps(self) -> int:
        """Steps that were run, counted once for each row of the batch."""
        return 0 if self._batch is None else int(self._batch.state.steps) * len(self._batch.state.done)

    def warm_up(self) -> None:
        """Compiles all programs by running two requests, with and without changed logits; needs `prefill_chunks`."""
        assert self._batch is not None
        options = dataclasses.replace(DUMMY_OPTIONS, max_new_tokens=2, temperature=1.0, top_p=0.5, ignore_eos=True)
        # The second request starts from cached blocks of the first: one that has no draft state, and one that has.
        lengths = (blocks * chunk_tokens() + 1 for blocks in (2, 1, 0))
        prompt = [0] * next(n for n in lengths if n == 1 or n < min(self.shape.slots, self.model.context))
        for each in (options, dataclasses.replace(options, presence_penalty=1.0)):
            prefill = ChunkedPrefill(self._batch, Request(0, prompt, each, seed=0, sample=0), self.prefixes)
            prefill.read(prefill.num_unread)
            prefill.insert(0)
            self._batch.warm_up()
            self._batch.end([0])
        self.prefixes.clear()

    def restart(self) -> None:
        """Forgets all requests, and begins an empty batch in the memory of the old one: there may be none for two."""
        for requests in (self._queue, self._running, self._reported, self._cancelled):
            requests.clear()
        self._reading, self._decode_next = None, False
        self.prefixes.clear()
        self.close()
        self._batch = None if self._chunks is None else self._new_batch()

    def _new_batch(self, requests: Sequence[Request] = (), *, poll_first_tokens: bool = True) -> Batch:
        options: dict[str, Any] = dict(measured=self.measured, modes=self._modes, poll_first_tokens=poll_first_tokens)
        return Batch(self.model, self.drafter, self.shape, requests, tables=self.tables.sizes, **options)

    def stop_compiling(self) -> None:
        """Starts no further compilation; running ones finish."""
        self.tables.close()
        self._modes.close()

    def close(self) -> None:
        """Frees the memory of the batch."""
        if self._batch is not None:
            self._batch.free()
            self._batch = None

    def _end_cancelled(self) -> list[Event]:
        """Ends what was cancelled; events of requests that have no row yet."""
        if not self._cancelled:
            return []
        waiting = [*self._queue, *([self._reading[:2]] if self._reading else [])]
        ended = [(id, Row(request, done=True)) for id, request in waiting if id in self._cancelled]
        self._queue = collections.deque(entry for entry in self._queue if entry[0] not in self._cancelled)
        if self._reading is not None and self._reading[0] in self._cancelled:
            self._reading = None
        events = [self._event(id, row) for id, row in ended]
        row_indices = [row_index for row_index, id in self._running.items() if id in self._cancelled]
        self._cancelled.intersection_update(self._running.values())
        if row_indices and self._batch is not None:
            self._batch.end(row_indices)
        return events

    def _event(self, id: int, row: Row) -> Event:
        """Returns the news of a row, with its result if it is done."""
        if not row.done:
            return Event(id, row.request, row.output)
        result = result_of(row, self.model.tokenizer, self.drafter.shape.depth)
        if id in self._cancelled:
            self._cancelled.remove(id)
            result = dataclasses.replace(result, finish_reason=CANCELLED)
        return Event(id, row.request, row.output, result)

    def _prefill_at_once(self) -> None:
        """Prefills the first requests as a batch, and later requests in groups in the rows of finished ones."""
        if self._batch is None and self._queue:
            entries = self._next(self.shape.rows)
            requests = [request for _, request in entries]
            poll = self._steps is not None
            self._batch = self._new_batch(requests, poll_first_tokens=poll)
            self._running = {row_index: id for row_index, (id, _) in enumerate(entries)}
            return
        batch = self._batch
        free = [row_index for row_index in range(self.shape.rows) if row_index not in self._running]
        while batch is not None and free and self._queue:
            entries = self._next(min(batch.group, len(free)))
            row_indices, free = free[: len(entries)], free[len(entries) :]
            batch.admit(row_indices, [request for _, request in entries])
            self._running |= {row_index: id for row_index, (id, _) in zip(row_indices, entries, strict=True)}

    def _next(self, count: int) -> list[tuple[int, Request]]:
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _prefill_chunks(self, events: list[Event]) -> None:
        """Reads `prefill_chunks` chunks of the next requests; adds an event for each failed prefill."""
        left = self._chunks or 0
        while left > 0 and self._begin_reading(events) and self._reading is not None:
            id, request, prefill = self._reading
            try:
                left -= prefill.read(left)
            except Exception as error:  # the other requests have nothing to do with it
                self._reading = None
                self.prefixes.recover(error)
                events.append(Event(id, request, NO_OUTPUT, error=error))
                continue
            if not prefill.num_unread:
                row_index = next(row_index for row_index in range(self.shape.rows) if row_index not in self._running)
                prefill.insert(row_index)
                self._running[row_index], self._reading = id, None

    def _begin_reading(self, events: list[Event]) -> bool:
        """Returns whether a request is being read, or could be begun."""
        if self._reading is not None:
            return True
        if not self._queue or len(self._running) == self.shape.rows:
            return False
        batch = self._batch
        if batch is None or int(batch.state.steps) > MAX_STEPS:
            if self._running:
                return False
            self.close()
            batch = self._batch = self._new_batch()
        [(id, request)] = self._next(1)
        try:
            self._reading = id, request, ChunkedPrefill(batch, request, self.prefixes)
        except Exception as error:
            self.prefixes.recover(error)
            events.append(Event(id, request, NO_OUTPUT, error=error))
            return self._begin_reading(events)
        return True

    def _new_events(self) -> list[Event]:
        """Returns the events of rows with new tokens (of complete answers if `steps` is None); frees complete rows."""
        events = []
        rows = [] if self._batch is None else self._batch.rows
        for row_index, id in list(self._running.items()):
            row = rows[row_index]
            if row.done:
                del self._running[row_index]
                self._reported.pop(row_index, None)
                events.append(self._event(id, row))
            elif self._steps is not None and len(row.output.token_ids) != self._reported.get(row_index):
                self._reported[row_index] = len(row.output.token_ids)
                events.append(self._event(id, row))
        return events
