"""One batch of requests on its way through the loop."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.api import programs
from eagle_jax.api.model import Model
from eagle_jax.api.options import Options
from eagle_jax.api.results import Result, Stats
from eagle_jax.api.text import StopHit, decode, find_stop
from eagle_jax.decoding.decode import compiled_advance, compiled_prefill
from eagle_jax.decoding.state import DecodeState, Request
from eagle_jax.drafters.base import Drafter
from eagle_jax.sharding import DATA, to_host

UNLIMITED = 2**31 - 1
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Ask:
    """One answer to make: which prompt it belongs to, its tokens, and what seeds it."""

    index: int
    prompt: list[int]
    seed: int
    sample: int


@dataclasses.dataclass
class Progress:
    """What the host knows of a running batch: answers so far, and where the time went."""

    answers: list[list[int]]
    done: list[bool]
    stops: list[StopHit | None]
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class Batch:
    """Prefills on construction; `run` decodes, all at once or a few cycles at a time."""

    def __init__(self, model: Model, drafter: Drafter, asks: Sequence[Ask], options: Options):
        self.model, self.drafter, self.asks, self.options = model, drafter, asks, options
        self.request, tokens, slots = _layout(model, drafter, asks, options)
        self.progress = Progress(answers=[[] for _ in asks], done=[False] * len(asks), stops=[None] * len(asks))
        self.state = self._timed(
            "prefill_seconds",
            compiled_prefill(),
            *(model.target, drafter, self.request, tokens),
            mode=options.mode,
            slots=slots,
            chunk=_chunk(),
            logprobs=options.logprobs,
            over=model.over,
        )
        self._look()

    def run(self, cycles: int | None = None) -> Iterator[Progress]:
        """Decodes to the end, and tells how far it is every `cycles` target passes (None: at the end only).

        With stop strings the host has to look at the text now and then, every 8 passes at least.
        """
        if self.options.stop:
            cycles = min(cycles or 8, 8)
        while not all(self.progress.done):
            until = UNLIMITED if cycles is None else min(int(self.state.cycle) + cycles, UNLIMITED)
            self.state = self._timed(
                "decode_seconds",
                compiled_advance(),
                *(self.model.target, self.drafter, self.request, self.state, jnp.asarray(until, jnp.int32)),
                mode=self.options.mode,
                over=self.model.over,
            )
            self._look()
            yield self.progress

    def results(self) -> list[Result]:
        """The answers, in the order of the asks."""
        state = self.state
        accepted, cycles, stopped, came_with, logprobs = to_host(
            (state.accepted, state.cycles, state.stopped, state.came_with, state.logprobs)
        )
        return [
            self._result(row, accepted[row], int(cycles[row]), bool(stopped[row]), came_with[row], logprobs)
            for row in range(len(self.asks))
        ]

    def _result(
        self,
        row: int,
        accepted: np.ndarray,
        cycles: int,
        stopped: bool,
        came_with: np.ndarray,
        logprobs: np.ndarray | None,
    ) -> Result:
        hit, ids, start = self.progress.stops[row], self.progress.answers[row], len(self.asks[row].prompt)
        return Result(
            text=decode(self.model.tokenizer, ids) if hit is None else hit.text,
            token_ids=list(ids),
            finish_reason="stop" if stopped or hit is not None else "length",
            logprobs=None if logprobs is None else logprobs[row, start : start + len(ids)].tolist(),
            prompt_tokens=start,
            stats=self._stats(accepted, cycles, came_with[start : start + len(ids)]),
        )

    def _stats(self, accepted: np.ndarray, cycles: int, came_with: np.ndarray) -> Stats:
        progress, tokens = self.progress, len(came_with)
        return Stats(
            cycles=cycles,
            mean_accepted_length=float(accepted.sum() / cycles) if cycles else float("nan"),
            accepted_lengths=np.bincount(came_with)[1:].tolist(),
            accepted_by_depth=[float(count / cycles) if cycles else float("nan") for count in accepted[1:]],
            compile_seconds=progress.compile_seconds,
            prefill_seconds=progress.prefill_seconds,
            decode_seconds=progress.decode_seconds,
            tokens_per_second=(tokens - 1) / progress.decode_seconds if tokens > 1 else float("nan"),
        )

    def _timed(self, account: str, function, *args, **fixed) -> DecodeState:
        start = time.perf_counter()
        state, compiling = programs.call(function, *args, **fixed)
        jax.block_until_ready(state.length)
        spent = time.perf_counter() - start - compiling
        setattr(self.progress, account, getattr(self.progress, account) + spent)
        self.progress.compile_seconds += compiling
        return state

    def _look(self) -> None:
        """Fetches what is new; ends rows in which a stop string turned up."""
        state = self.state
        tokens, length, done = to_host((state.tokens, state.length, state.done))
        for row, ask in enumerate(self.asks):
            if self.progress.done[row]:
                continue
            answer = tokens[row, len(ask.prompt) : length[row] + 1].tolist()
            hit = find_stop(self.model.tokenizer, answer, self.options.stop)
            self.progress.answers[row] = answer if hit is None else answer[: hit.tokens]
            self.progress.stops[row] = hit
            self.progress.done[row] = bool(done[row]) or hit is not None
        finished = np.array(self.progress.done + [True] * (len(done) - len(self.asks)))
        if (finished != done).any():
            self.state = dataclasses.replace(state, done=_spread(self.model, jnp.asarray(finished)))


def _layout(model: Model, drafter: Drafter, asks: Sequence[Ask], options: Options) -> tuple[Request, jax.Array, int]:
    """Pads the batch to its bucket: rows to a power of two, slots to a step of about half their size.

    Over several devices every part of the `data` axis has that power of two of rows.
    """
    groups = 1 if model.over is None else model.over.sizes[DATA]
    rows = groups << (-(-len(asks) // groups) - 1).bit_length()
    padded = [*asks, *[asks[0]] * (rows - len(asks))]
    lengths = np.array([len(ask.prompt) for ask in padded], np.int32)
    limit = lengths + np.int32(min(options.max_new_tokens, model.context))
    limit = np.minimum(limit, np.int32(model.context))
    limit[len(asks) :] = 0  # padding rows are done before they begin

    chunk, path = _chunk(), drafter.shape.depth + 1
    slots = bucket(max(int(limit.max()) + path, -(-int(lengths.max()) // chunk) * chunk))
    tokens = np.zeros((rows, slots + path), np.int32)
    for row, ask in enumerate(padded):
        tokens[row, : len(ask.prompt)] = ask.prompt
    request = Request(
        settings=options.settings([ask.seed for ask in padded], [ask.sample for ask in padded]),
        prompt_length=jnp.asarray(lengths),
        limit=jnp.asarray(limit),
        stop_ids=jnp.asarray(model.stop_ids or (-1,), jnp.int32),
    )
    return (*_spread(model, (request, jnp.asarray(tokens))), slots)


def _spread(model: Model, tree: T) -> T:
    """Requests and what belongs to them, over the model's devices."""
    return tree if model.over is None else model.over.put(tree, model.over.state)


def bucket(slots: int) -> int:
    """Slots rounded up so that few programs serve all lengths: to 128, or half of the power of two below."""
    step = max(128, (1 << (slots.bit_length() - 1)) // 2)
    return -(-slots // step) * step


def _chunk() -> int:
    """Prompt tokens read per pass: a CPU is busy with 64, an accelerator wants more for its weights' traffic."""
    return 64 if jax.default_backend() == "cpu" else 256
