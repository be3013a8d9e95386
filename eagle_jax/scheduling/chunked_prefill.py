"""Prefill of one request chunk by chunk, while a batch goes on decoding in between."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter
from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.prefill import (
    compiled_init_prefill,
    compiled_read_prompts,
    compiled_restart_prefill,
    first_tokens,
)
from eagle_jax.loop.state import BatchParams, PrefillState
from eagle_jax.models.target import Target
from eagle_jax.requests.request import Request
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch import Batch, Row
from eagle_jax.scheduling.batch_inputs import batch_inputs
from eagle_jax.scheduling.insert import Running, insert_one
from eagle_jax.scheduling.prefix_cache import (
    PrefixCache,
    block_ids_of,
    compiled_put_block,
    compiled_take_block,
    state_interval,
)
from eagle_jax.scheduling.sizes import chunk_tokens
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.structured.table_sizes import TableSizes


class ChunkedPrefill:
    """A request that joins a batch: `read` until `num_unread` is 0, then `insert`.

    Args:
        prefixes: cache of earlier prompts' prefixes, which this prefill starts from and adds to.

    Attributes:
        num_unread: number of chunks of the prompt still to be read.
    """

    def __init__(self, batch: Batch, request: Request, prefixes: PrefixCache):
        self._batch, self._row, self._prefixes = batch, Row(request), prefixes
        self._all_params, self._tokens = batch_inputs(batch.model, batch.drafter, [request], batch.shape, batch.tables)
        # prefill ignores the processor, so one program serves all requests
        self._params = dataclasses.replace(self._all_params, processor=None)
        self._static: dict[str, Any] = dict(chunk=chunk_tokens(), sharding=batch.model.sharding)
        self._progress = self._begin()
        self._block_ids = block_ids_of(request, chunk_tokens(), batch.model.target.config) if prefixes.budget else []
        interval = state_interval(self._progress, chunk_tokens()) if self._block_ids else 1
        self._with_state = prefixes.blocks_to_keep_with_state(self._block_ids, interval)
        blocks = prefixes.find(self._block_ids)
        for block in blocks:
            self._progress = self._timed(compiled_put_block(), self._progress, block, **self._static)
        self._num_read, self.num_unread = len(blocks), -(-len(request.prompt) // chunk_tokens()) - len(blocks)
        self._row.cached_tokens = len(blocks) * chunk_tokens()

    def read(self, chunks: int) -> int:
        """Reads at most `chunks` further chunks; returns how many it read."""
        count = min(chunks, self.num_unread)
        for _ in range(count):
            self._num_read, self.num_unread = self._num_read + 1, self.num_unread - 1
            inputs = (*self._inputs(), self._tokens, self._progress, jnp.asarray(self._num_read, jnp.int32))
            self._progress = self._timed(compiled_read_prompts(), *inputs, **self._static)
            if self._num_read <= len(self._block_ids):
                with_state = self._num_read in self._with_state
                block = self._timed(compiled_take_block(), self._progress, with_state=with_state, **self._static)
                self._prefixes.keep(self._block_ids[: self._num_read], block)
        return count

    def insert(self, row_index: int) -> None:
        """Draws the first token and takes a free row of the batch."""
        batch, at = self._batch, jnp.asarray(row_index, jnp.int32)
        copies_all = jnp.asarray(row_index in batch.failed_rows)
        inputs = (
            (batch.params, batch.state),
            at,
            copies_all,
            *self._inputs()[:2],
            self._all_params,
            self._tokens,
            self._progress,
        )
        batch.params, batch.state = self._timed(_compiled_first_token(), *inputs, **self._first_static)
        batch.failed_rows.discard(row_index)
        batch.rows[row_index] = self._row
        batch.poll()
        batch.spare_prefill = None if self._row.failed else self._progress

    def preparation(self, sizes: TableSizes) -> Callable[[], None]:
        """Returns a function that compiles `insert` for tables of these sizes; callable on any thread."""
        batch, request, static = self._batch, self._row.request, self._first_static
        running, progress = programs.shapes_of(((batch.params, batch.state), self._progress))
        models, tokens, at = self._inputs()[:2], self._tokens, (jnp.zeros((), jnp.int32), jnp.asarray(False))

        def compile_program() -> None:
            params, _ = batch_inputs(batch.model, batch.drafter, [request], batch.shape, [sizes])
            programs.ready(_compiled_first_token(), running, *at, *models, params, tokens, progress, **static)

        return compile_program

    @property
    def _first_static(self) -> dict[str, Any]:
        shape = self._batch.shape
        return {"mode": shape.mode, "logprobs": shape.logprobs, "sharding": self._batch.model.sharding}

    def _begin(self) -> PrefillState:
        """Returns empty caches, reusing an earlier prompt's arrays if there are spare ones."""
        batch, sharding = self._batch, self._batch.model.sharding
        spare, batch.spare_prefill = batch.spare_prefill, None
        if spare is None:
            return self._timed(compiled_init_prefill(), *self._inputs(), slots=batch.shape.slots, sharding=sharding)
        return self._timed(compiled_restart_prefill(), *self._inputs(), spare, sharding=sharding)

    def _inputs(self) -> tuple[Target, Drafter, BatchParams]:
        return self._batch.model.target, self._batch.drafter, self._params

    def _timed(self, function: Any, *args: Any, **static: Any) -> Any:
        start = time.perf_counter()
        result, compiling = programs.call(function, *args, **static)
        jax.block_until_ready(result)
        self._row.compile_seconds += compiling
        self._row.prefill_seconds += time.perf_counter() - start - compiling
        return result


def _first_token(
    batch: Running,
    row_index: Int[Array, ""],
    copies_all: Bool[Array, ""],
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    tokens: Int[Array, "b t"],
    progress: PrefillState,
    *,
    mode: Sampling,
    logprobs: int,
    sharding: Sharding | None = None,
) -> Running:
    """Inserts a request whose prompt has been read, and returns the batch; `copies_all` as in `insert_one`."""
    state = first_tokens(target, drafter, params, tokens, progress, mode=mode, logprobs=logprobs)
    return insert_one(batch, (params, state), row_index, copies_all)


_compiled_first_token = functools.partial(
    compiled, sharded(_first_token), static=("mode", "logprobs", "sharding"), donated="batch"
)
