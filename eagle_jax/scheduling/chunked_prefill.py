"""A prompt that is read in pieces beside a running batch, so that nobody waits for more than a piece."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle_jax.decoding.decode import compiled_open_prompts, compiled_read_prompts, first_tokens
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.state import Reading, Request
from eagle_jax.drafters.base import Drafter
from eagle_jax.models.target import Target
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch import Ask, Batch, Row, Running, inserted, layout
from eagle_jax.sharding import Sharding, spread
from eagle_jax.tuning.sizes import chunk_tokens
from eagle_jax.workarounds import loop_options


class Newcomer:
    """A request on its way into a batch: `read` until nothing is `unread`, then `sit`.

    Attributes:
        unread: chunks of the prompt that are not read yet.
    """

    def __init__(self, batch: Batch, ask: Ask):
        self._batch, self._row = batch, Row(ask)
        self._request, self._tokens = layout(batch.model, batch.drafter, [ask], batch.room.slots)
        self._read, self.unread = 0, -(-len(ask.prompt) // chunk_tokens())
        self._reading = self._timed(
            compiled_open_prompts(), *self._given(), slots=batch.room.slots, over=batch.model.over
        )

    def read(self, chunks: int) -> int:
        """Reads so many chunks, or what is left; tells how many it were."""
        now = min(chunks, self.unread)
        self._read, self.unread = self._read + now, self.unread - now
        until = jnp.asarray(self._read, jnp.int32)
        given = (*self._given(), self._tokens, self._reading, until)
        self._reading = self._timed(compiled_read_prompts(), *given, chunk=chunk_tokens(), over=self._batch.model.over)
        return now

    def sit(self, place: int) -> None:
        """Draws the first token and takes a free place of the batch."""
        batch, where = self._batch, jnp.asarray([place], jnp.int32)
        given = ((batch.request, batch.state), where, *self._given(), self._tokens, self._reading)
        batch.request, batch.state = self._timed(
            _compiled_seat(), *given, mode=batch.mode, logprobs=batch.room.logprobs, over=batch.model.over
        )
        batch.rows[place] = self._row
        batch.look()

    def _given(self) -> tuple[Target, Drafter, Request]:
        return self._batch.model.target, self._batch.drafter, self._request

    def _timed(self, function: Any, *args: Any, **fixed: Any) -> Any:
        start = time.perf_counter()
        result, compiling = programs.call(function, *args, **fixed)
        jax.block_until_ready(result)
        self._row.compile_seconds += compiling
        self._row.prefill_seconds += time.perf_counter() - start - compiling
        return result


def _seat(
    whole: Running,
    places: Int[Array, "1"],
    target: Target,
    drafter: Drafter,
    request: Request,
    tokens: Int[Array, "b t"],
    reading: Reading,
    *,
    mode: Sampling,
    logprobs: bool,
    over: Sharding | None = None,
) -> Running:
    state = first_tokens(target, drafter, request, tokens, reading, mode=mode, logprobs=logprobs)
    return inserted(whole, (request, state), places)


@functools.cache
def _compiled_seat() -> Any:
    """Donates the batch: its caches are written in place."""
    fixed = ("mode", "logprobs", "over")
    return jax.jit(spread(_seat), donate_argnums=0, static_argnames=fixed, compiler_options=loop_options())
