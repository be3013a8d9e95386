"""Times several drafters from the same decoding state."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from eagle_jax.chat.prompts import Prompt
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.timing import DraftOnly, VerifyOnly
from eagle_jax.loading.model import Model
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.state import DecodeState
from eagle_jax.requests.options import Options
from eagle_jax.requests.request import Request, requests_for
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch import UNLIMITED, Batch
from eagle_jax.scheduling.batch_shape import shape_for
from eagle_jax.sharding import to_host

T = TypeVar("T")


STEPS = 16  # steps of one timed run of `seconds_per_step`


@dataclasses.dataclass(frozen=True)
class TimedRun:
    """A run of a batch: its number of steps, seconds, and tokens of all rows together."""

    steps: int
    seconds: float
    tokens: int


class Start:
    """The state after prefill, from which any drafter can decode: prompts are prefilled once for all drafters.

    Args:
        drafter: a drafter of the method, with the deepest tree.
        others: further requests that the caches must fit.
    """

    def __init__(self, model: Model, drafter: Drafter, requests: Sequence[Request], others: Sequence[Request] = ()):
        self.model = model
        drafter = DraftOnly(drafter)
        self.batch = Batch(model, drafter, shape_for(model, drafter, [*requests, *others], len(requests)), requests)

    def run(self, drafter: Drafter, steps: int | None = None) -> TimedRun:
        """Runs `steps` steps with a drafter, or steps until the first answer is complete; compiling is not timed."""
        arguments = self._arguments(drafter, steps)
        start = time.perf_counter()
        after, compiling = programs.call(
            compiled_advance(), *arguments, mode=self.batch.shape.mode, sharding=self.model.sharding
        )
        jax.block_until_ready(after.length)
        seconds = time.perf_counter() - start - compiling
        steps, length, before = to_host((after.steps, after.length, self.batch.state.length))
        return TimedRun(max(int(steps), 1), seconds, int((length - before).sum()))

    def program(self, drafter: Drafter) -> str:
        """Returns the text of the program that `run` compiles."""
        arguments = self._arguments(drafter, None)
        program, _ = programs.ready(
            compiled_advance(), *arguments, mode=self.batch.shape.mode, sharding=self.model.sharding
        )
        return program.as_text()

    def _arguments(self, drafter: Drafter, steps: int | None) -> tuple[Any, ...]:
        """Returns the arguments of the loop's program, with a copy of the state, which the program donates."""
        state = jax.block_until_ready(jax.tree.map(jnp.copy, self._initial_state(drafter)))
        max_steps, max_done = (UNLIMITED, 1) if steps is None else (steps, len(state.done))
        limits = jnp.asarray(max_steps, jnp.int32), jnp.asarray(max_done, jnp.int32)
        return self.model.target, drafter, self.batch.params, state, *limits

    def _initial_state(self, drafter: Drafter) -> DecodeState:
        """Returns the batch's state with this drafter's state after prefill."""
        state, inner = self.batch.state, self.batch.state.draft.state
        rows, slots = len(state.done), state.cache.slots
        draft: Any = inner
        if isinstance(drafter, DraftOnly):
            draft = dataclasses.replace(drafter.init(self.model.target, rows, slots), state=inner)
        elif isinstance(drafter, Plain | VerifyOnly):
            draft = ()
        state = dataclasses.replace(state, draft=draft)
        return state if self.model.sharding is None else self.model.sharding.put(state, self.model.sharding.state)


def time_answers(
    start: Start, drafters: dict[T, Drafter], advance: Callable[[], None] = lambda: None
) -> dict[T, TimedRun]:
    """Times drafters until the first answer is complete; returns the fastest of alternating runs."""
    runs_of: dict[T, list[TimedRun]] = {key: [] for key in drafters}
    for repeat in range(5):
        for key, drafter in drafters.items():
            timed_run = start.run(drafter)
            if repeat:
                runs_of[key].append(timed_run)
            else:
                advance()
    return {key: min(runs, key=lambda timed_run: timed_run.seconds) for key, runs in runs_of.items()}


def seconds_per_step(
    start: Start, drafters: dict[Any, Drafter], advance: Callable[[], None] = lambda: None
) -> dict[Any, float]:
    """Returns the seconds of a step with each drafter: the minimum of 3 to 12 alternating runs, as load only adds."""
    for drafter in drafters.values():
        start.run(drafter, STEPS)  # compiles
        advance()
    seconds: dict[Any, list[float]] = {key: [] for key in drafters}
    start_time = time.perf_counter()
    for repeat in range(12):
        if repeat >= 3 and time.perf_counter() - start_time > len(drafters):
            break
        for key, drafter in drafters.items():
            timed_run = start.run(drafter, STEPS)
            seconds[key].append(timed_run.seconds / timed_run.steps)
    return {key: min(values) for key, values in seconds.items()}


def shortened(request: Request, tokens: int) -> Request:
    """Returns the request with at most `tokens` new tokens."""
    options = dataclasses.replace(request.options, max_new_tokens=min(tokens, request.options.max_new_tokens))
    return dataclasses.replace(request, options=options)


def greedy_requests(model: Model, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Request]:
    """Returns requests for greedy answers to the prompts."""
    options = Options(
        max_new_tokens=max_new_tokens, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, stop=(), logprobs=False
    )
    return requests_for(model, list(prompts), [options] * len(prompts), [0] * len(prompts))
