"""A batch of requests on the device: prefill, steps of the loop, and the answers as of the last poll."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.paused import Ready
from eagle_jax.loading.model import Model
from eagle_jax.loop.catch_up import compiled_catch_up
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_empty_state, compiled_prefill
from eagle_jax.loop.state import BatchParams, DecodeState, PrefillState, TopTokens
from eagle_jax.requests.request import DUMMY_REQUEST, WITH_TABLES, Request
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.backlog import Backlog
from eagle_jax.scheduling.batch_inputs import batch_inputs, processor_for, sharded_arrays
from eagle_jax.scheduling.batch_shape import BatchShape, token_limit
from eagle_jax.scheduling.by_load import ByLoad
from eagle_jax.scheduling.insert import Running, compiled_insert
from eagle_jax.scheduling.logits_tables import LogitsTables
from eagle_jax.scheduling.measured import Measured
from eagle_jax.scheduling.modes import Modes
from eagle_jax.scheduling.new_columns import Columns, fetch
from eagle_jax.scheduling.recorder import Recorder, last_steps
from eagle_jax.scheduling.row import Row
from eagle_jax.scheduling.sizes import chunk_tokens, padded_batch_size
from eagle_jax.sharding import to_host
from eagle_jax.structured.table_sizes import TableSizes

UNLIMITED = 2**31 - 1
STOP_STRING_STEPS = 8  # steps between two searches for stop strings, which only the host can find


class Batch:
    """Rows of one compiled loop. Prefills `requests` on construction; `decode` runs steps; `admit` puts other requests
    into the rows of finished ones, which the other rows do not notice.

    Args:
        shape: what its programs are compiled for.
        measured: drafters for the numbers of rows that may take part in a step, and what they took so far; None: all
            rows do, with `drafter`, whose state is that of all of them.
        requests: one for each row; without any, all rows are free.
        poll_first_tokens: whether first tokens are fetched before the first step. Where only complete answers are
            reported nobody asks for them, and they are fetched only if a row ended with its first token.
        modes: which programs there are for rows that ask for less than the shape's mode; None: none.
        tables: sizes that programs are compiled for, of tables of what requests ask of their logits; others are taken
            where none of these cover them.

    Attributes:
        rows: the host's state of each row, by row index.
        params, state: the loop's parameters and state, on the device.
        spare: the caches of an earlier prompt's prefill, which the next one reuses; or None.
        failed_rows: rows whose last request failed: their caches may hold NaN.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        shape: BatchShape,
        requests: Sequence[Request] = (),
        *,
        measured: Measured | None = None,
        poll_first_tokens: bool = True,
        modes: Modes | None = None,
        tables: Sequence[TableSizes] = (),
    ):
        self.model, self.drafter, self.shape, self.tables = model, drafter, shape, tables
        self._measured = measured or Measured(ByLoad(((padded_batch_size(model, shape.rows), drafter),)))
        self._modes = modes or Modes(shape.mode)
        self._models = programs.packed(model.target), programs.packed(drafter)
        self.rows = [Row(request) for request in requests] or [Row(DUMMY_REQUEST, done=True)] * shape.rows
        self.spare_prefill: PrefillState | None = None
        self.failed_rows: set[int] = set()
        self._backlog = Backlog()
        self._logits_tables = LogitsTables(model)
        self.params, self.state = self._prefill(self.rows) if requests else self._empty()
        if poll_first_tokens or to_host(self.state.done).any():
            self.poll()

    @property
    def group(self) -> int:
        """Requests that `admit` takes at once, whose prompts one program reads: an eighth of the rows."""
        return max(self.shape.rows // 8, 1)

    def decode(self, steps: int | None = None, *, finished: int | None = None) -> None:
        """Runs `steps` steps (None: to the end of all answers), or until `finished` more answers are complete, and
        polls. With stop strings it returns after `STOP_STRING_STEPS` steps at most.
        """
        if any(row.request.options.stop for row in self.rows if not row.done):
            steps = min(steps or STOP_STRING_STEPS, STOP_STRING_STEPS)
        until = UNLIMITED if steps is None else min(int(self.state.steps) + steps, UNLIMITED)
        running = [index for index, row in enumerate(self.rows) if not row.done]
        size, drafter_index, drafter = self._measured.choose(len(running))
        steps_before, tokens_before = int(self.state.steps), {index: len(self.rows[index].polled) for index in running}
        free = [index for index in range(len(self.state.done)) if index not in running]
        indices = sorted([*running, *free][:size])
        enough = len(indices) - (0 if finished is None else max(len(running) - finished, 0))
        is_due = self._backlog.advance(drafter, until - int(self.state.steps))
        caught_up = self._catch_up(indices) if is_due else (0.0, 0.0)
        advanced = self._advance(until, enough, indices, drafter)
        compiling, seconds = caught_up[0] + advanced[0], caught_up[1] + advanced[1]
        for row in (self.rows[index] for index in running):
            row.compile_seconds += compiling
            row.decode_seconds += seconds
        self.poll()
        for index, tokens in tokens_before.items():
            self.rows[index].spend(drafter.shape.nodes, tokens, seconds)
        new_tokens = sum(len(self.rows[index].polled) - tokens for index, tokens in tokens_before.items())
        took = int(self.state.steps) - steps_before, new_tokens
        self._measured.contests[size].add(drafter_index, *took, len(running), advanced[1])

    def admit(self, indices: Sequence[int], requests: Sequence[Request]) -> None:
        """Prefills other requests, at most `group`, in the rows of finished ones."""
        rows = [Row(request) for request in requests]
        params, state = self._prefill(rows, self.group)
        padding = [indices[0]] * (len(state.done) - len(rows))
        at = jnp.asarray([*indices, *padding], jnp.int32)
        (self.params, self.state), compiling = programs.call(
            compiled_insert(), (self.params, self.state), (params, state), at, sharding=self.model.sharding
        )
        for index, row in zip(indices, rows, strict=True):
            row.compile_seconds += compiling
            self.rows[index] = row
        self.poll()

    def warm_up(self) -> float:
        """Compiles what `decode` runs for these rows, by running it with nothing to do; the seconds that it took."""
        steps, seconds, active = int(self.state.steps), 0.0, [row.request for row in self.rows if not row.done]
        for size, drafter in self._measured.by_load.entries:
            indices = [*range(size)]
            seconds += self._catch_up(indices)[0] if isinstance(drafter, Ready) else 0.0
            seconds += sum(
                self._advance(steps, size, indices, drafter, mode)[0] for mode in self._modes.to_warm(active)
            )
        seconds += self._logits_tables.warm_up()
        zeros = [0] * len(self.state.done)
        for top in (None, self.state.top):
            seconds += fetch(self._columns(top), zeros, zeros, sharding=self.model.sharding)[1]
        return seconds

    def preparation(self, sizes: TableSizes | None, mode: Sampling | None = None) -> Callable[[], None]:
        """Returns a function that compiles the programs of `decode` for tables of these sizes (None: for rows without)
        and of a mode (None: the shape's), on any thread, while steps are run.
        """
        request, static = DUMMY_REQUEST if sizes is None else WITH_TABLES, self._static(mode or self.shape.mode)
        params, state, tables = self.params, self.state, [] if sizes is None else [sizes]

        def compile_programs() -> None:
            for size, drafter in self._measured.by_load.entries:
                processor = sharded_arrays(self.model, processor_for(self.model, [request], size, tables))
                shapes = programs.shapes_of((dataclasses.replace(params, processor=processor), state))
                inputs = self._inputs(shapes[0], shapes[1], drafter, 0, 0, [*range(size)])
                programs.ready(compiled_advance(), *inputs, **static)

        return compile_programs

    def end(self, indices: Sequence[int]) -> None:
        """Ends the answers of these rows, which are then free."""
        for index in indices:
            self.rows[index].done = True
        self.poll()

    def free(self) -> None:
        """Frees the caches even if something, such as a traceback, still refers to them. Nothing can run afterwards."""
        for array in jax.tree.leaves((self.params, self.state, self.spare_prefill)):
            if isinstance(array, jax.Array):
                array.delete()

    def poll(self) -> None:
        """Fetches new tokens, and ends rows in which a stop string is found."""
        state = self.state
        length, done, stopped = to_host((state.length, state.done, state.stopped))
        running = [index for index, row in enumerate(self.rows) if not row.done]
        new = self._fetch(length)
        trees = last_steps(state.draft) if isinstance(self.drafter, Recorder) else []
        for index in running:
            row = self.rows[index]
            row.extend(new[index], trees[index] if trees else None)
            if math.isnan(row.first_token_seconds):
                row.first_token_seconds = programs.seconds_since(row.request.submitted)
            hit = row.read(self.model.tokenizer).stop_hit if row.request.options.stop else None
            if hit is not None:
                row.output = row.output.first(hit.tokens)
            row.done, row.stopped = bool(done[index]) or hit is not None, bool(stopped[index])
            has_room = int(length[index]) + 1 < token_limit(self.model, row.request)
            row.failed = row.done and not row.stopped and hit is None and has_room
            self.failed_rows |= {index} if row.failed else set()
        finished = np.array([row.done for row in self.rows] + [True] * (len(done) - len(self.rows)))
        if (finished != done).any():
            self.state = dataclasses.replace(state, done=sharded_arrays(self.model, jnp.asarray(finished)))

    def _fetch(self, length: np.ndarray) -> list[Columns]:
        """Fetches the new columns of each row that is not done; `length` counts the committed tokens of each row."""
        running = [row for row in self.rows if not row.done]
        top = self.state.top if any(row.request.options.top_logprobs for row in running) else None
        end = (length + 1).tolist()
        begin = [*end]
        begin[: len(self.rows)] = [last if row.done else row.num_seen for row, last in zip(self.rows, end)]
        new, compiling = fetch(self._columns(top), begin, end, sharding=self.model.sharding)
        for row in running:
            row.compile_seconds += compiling
        return new

    def _columns(self, top: TopTokens | None) -> Columns:
        return Columns(self.state.tokens, self.state.committed_at_step, self.state.logprobs, top)

    def _prefill(self, rows: Sequence[Row], min_rows: int = 1) -> Running:
        """Prefills new rows together, by a program for at least `least` rows."""
        padded = [row.request for row in rows] + [DUMMY_REQUEST] * (min_rows - len(rows))
        params, tokens = batch_inputs(self.model, self.drafter, padded, self.shape)
        state, compiling, seconds = _timed(
            compiled_prefill(),
            *(*self._models, *self._keyed(params, tokens)),
            mode=self.shape.mode,
            slots=self.shape.slots,
            chunk=chunk_tokens(),
            logprobs=self.shape.logprobs,
            sharding=self.model.sharding,
        )
        for row in rows:
            row.compile_seconds, row.prefill_seconds = compiling, seconds
            row.first_token_seconds = programs.seconds_since(row.request.submitted)
        return dataclasses.replace(params, processor=None), state

    def _advance(
        self, until: int, enough: int, indices: list[int], drafter: Drafter, mode: Sampling | None = None
    ) -> tuple[float, float]:
        """Runs the rows at `indices` until step `until` or until `enough` of them are done; the seconds that compiling
        and running took. Without a mode it is the one for the rows that go on.
        """
        inputs = self._inputs(self._params_for(indices), self.state, drafter, until, enough, indices)
        if mode is None:
            active = [row.request for row in self.rows if not row.done]
            mode = self._modes.choose(active, self._logits_tables.sizes, self.preparation)
        self.state, compiling, seconds = _timed(compiled_advance(), *inputs, **self._static(mode))
        return compiling, seconds

    def _inputs(
        self, params: BatchParams, state: DecodeState, drafter: Drafter, until: int, enough: int, indices: list[int]
    ) -> tuple[Any, ...]:
        """Returns the arguments of `compiled_advance`."""
        others = [state, np.array(until, np.int32), np.array(enough, np.int32)]
        if len(indices) < len(state.done):
            others.append(np.array(indices, np.int32))
        return (self._models[0], programs.packed(drafter), *self._keyed(params, *others))

    def _catch_up(self, indices: list[int]) -> tuple[float, float]:
        """Lets the drafter read what was committed while it paused; the seconds that compiling and running took."""
        inputs = self._models[0], programs.packed(self.drafter), self.state, np.array(indices, np.int32)
        self.state, compiling, seconds = _timed(compiled_catch_up(), *inputs)
        return compiling, seconds

    def _static(self, mode: Sampling) -> dict[str, Any]:
        return {"mode": mode, "sharding": self.model.sharding}

    def _keyed(self, params: BatchParams, *others: Any) -> tuple[Any, ...]:
        """Returns arguments whose shapes follow from a few numbers: on one device, with the same models."""
        if self.model.sharding is not None:
            return params, *others
        processor = params.processor
        tables = processor and (processor.bad_words.shape, *map(np.shape, jax.tree.leaves(processor.automata)))
        key = params.stop_ids.shape, tables, self.shape.slots, self.shape.logprobs, len(others), np.shape(others[-1])
        return (programs.KeyedArgs(key, (params, *others)),)

    def _params_for(self, indices: list[int]) -> BatchParams:
        """Returns the parameters with the logits processors of the unfinished rows at `indices`."""
        rows = [self.rows[index] for index in indices if index < len(self.rows)]  # further indices are padding
        requests = [DUMMY_REQUEST if row.done else row.request for row in rows]
        padded = [*requests, *[DUMMY_REQUEST] * (len(indices) - len(requests))]
        return dataclasses.replace(self.params, processor=self._logits_tables.of(padded, self.tables))

    def _empty(self) -> Running:
        """Returns rows that are done before they begin."""
        params, tokens = batch_inputs(self.model, self.drafter, [row.request for row in self.rows], self.shape)
        state, _ = programs.call(
            compiled_empty_state(),
            *(*self._models, params, tokens),
            slots=self.shape.slots,
            logprobs=self.shape.logprobs,
            sharding=self.model.sharding,
        )
        return params, state


def _timed(function: Any, *args: Any, **static: Any) -> tuple[DecodeState, float, float]:
    """Returns a state, and the seconds that compiling and running took."""
    start = time.perf_counter()
    state, compiling = programs.call(function, *args, **static)
    jax.block_until_ready(state.length)
    return state, compiling, time.perf_counter() - start - compiling
