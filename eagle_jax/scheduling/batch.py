"""One batch of requests on its way through the loop."""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from eagle_jax.decoding.decode import compiled_advance, compiled_nobody, compiled_prefill
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.state import DecodeState, Request
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.options import Options, mode_of, settings_of
from eagle_jax.scheduling.recorder import Recorder, last_cycles
from eagle_jax.scheduling.results import Cycle, Result, Stats
from eagle_jax.sharding import Sharding, spread, to_host
from eagle_jax.text.detokenize import StopHit, decode, find_stop
from eagle_jax.tuning.sizes import chunk_tokens, rows_for, slots_beside
from eagle_jax.workarounds import loop_options

UNLIMITED = 2**31 - 1
Running = tuple[Request, DecodeState]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Ask:
    """One answer to make.

    Attributes:
        index: which prompt it belongs to.
        prompt: its tokens.
        options: how it is to be drawn.
        seed, sample: what seeds it.
        asked: when somebody asked, by `time.perf_counter`.
    """

    index: int
    prompt: list[int]
    options: Options
    seed: int
    sample: int
    asked: float = dataclasses.field(default_factory=time.perf_counter, compare=False)


SILENT = Options(max_new_tokens=1, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, stop=(), logprobs=False)
NOBODY = Ask(index=-1, prompt=[0], options=SILENT, seed=0, sample=0)


@dataclasses.dataclass(frozen=True)
class Room:
    """What the programs of a batch are compiled for.

    Attributes:
        rows: answers at a time.
        slots: tokens that a row's caches hold.
        mode: how its rows may draw.
        logprobs: whether they are recorded.
    """

    rows: int
    slots: int
    mode: Sampling
    logprobs: bool


@dataclasses.dataclass(frozen=True)
class Said:
    """What there is of an answer.

    Attributes:
        token_ids: its tokens so far.
        came_with: the target pass that each came with; 0 for the one that came with the prompt.
        logprobs: of each token; None unless asked for.
        trees: of target passes, by their number, with a drafter that records them: of the last before each look.
        seconds: spent on cycles until then.
    """

    token_ids: list[int]
    came_with: list[int]
    logprobs: list[float] | None
    trees: Mapping[int, Cycle] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def until(self, tokens: int) -> "Said":
        """The first so many tokens."""
        logprobs = None if self.logprobs is None else self.logprobs[:tokens]
        return dataclasses.replace(
            self, token_ids=self.token_ids[:tokens], came_with=self.came_with[:tokens], logprobs=logprobs
        )


SILENCE = Said([], [], None)


@dataclasses.dataclass
class Row:
    """What the host knows of one answer under way.

    Attributes:
        ask: what was asked.
        said: the answer so far.
        done: whether it is complete.
        stopped: whether a stop token ended it.
        stop: the stop string that ended it.
        compile_seconds: spent on compiling while it waited.
        prefill_seconds: spent on its prompt; rows that begin together share it.
        decode_seconds: spent on cycles since it began, whether for it alone or for others as well.
        first_token_seconds: from the request to its first token, compiling not counted; nan before.
    """

    ask: Ask
    said: Said = SILENCE
    done: bool = False
    stopped: bool = False
    stop: StopHit | None = None
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = math.nan


class Batch:
    """Prefills on construction; `run` decodes, all at once or a few cycles at a time. `admit` puts a new request into
    the place of a finished one, so that a batch stays full; the others do not notice.

    Args:
        others: requests that may be admitted later; there is room for the longest of them.
        room: room for requests that nobody knows yet; without any `asks`, all places are free to be admitted to.
        look: whether somebody wants to see the first tokens before `run`; otherwise only ends are looked for.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        asks: Sequence[Ask] = (),
        others: Sequence[Ask] = (),
        room: Room | None = None,
        look: bool = True,
    ):
        self.model, self.drafter = model, drafter
        self.room = room_for(model, drafter, [*asks, *others], len(asks)) if room is None else room
        self.mode = self.room.mode
        self._models = programs.packed(model.target), programs.packed(drafter)
        self.rows = [Row(ask) for ask in asks] or [Row(NOBODY, done=True)] * self.room.rows
        self.request, self.state = self._begin(self.rows) if asks else self._nobody()
        if look or to_host(self.state.done).any():
            self.look()

    def run(self, cycles: int | None = None, *, ends: int | None = None) -> Iterator[list[Row]]:
        """Decodes to the end, and shows the rows every `cycles` target passes (None: at the end only).

        With stop strings the host has to look at the text now and then, every 8 passes at least.

        Args:
            ends: also show them when so many more rows are done; `admit` may then go on with others in their places.
        """
        if any(row.ask.options.stop for row in self.rows):
            cycles = min(cycles or 8, 8)
        while not all(row.done for row in self.rows):
            until = UNLIMITED if cycles is None else min(int(self.state.cycle) + cycles, UNLIMITED)
            running = [row for row in self.rows if not row.done]
            enough = len(self.state.done) - (0 if ends is None else max(len(running) - ends, 0))
            compiling, seconds = self._advance(until, enough)
            for row in running:
                row.compile_seconds += compiling
                row.decode_seconds += seconds
            self.look()
            yield self.rows

    @property
    def together(self) -> int:
        """Requests that `admit` takes at once, and for which one program reads the prompts: an eighth of the rows."""
        return max(self.room.rows // 8, 1)

    def admit(self, places: Sequence[int], asks: Sequence[Ask]) -> None:
        """Begins other requests, at most `together`, in the places of finished ones. Their prompts are read together,
        chunk by chunk.
        """
        rows = [Row(ask) for ask in asks]
        request, state = self._begin(rows, self.together)
        spare = len(state.done) - len(rows)
        where = jnp.asarray([*places, *[places[0]] * spare], jnp.int32)
        (self.request, self.state), compiling = programs.call(
            _compiled_insert(), (self.request, self.state), (request, state), where, over=self.model.over
        )
        for place, row in zip(places, rows, strict=True):
            row.compile_seconds += compiling
            self.rows[place] = row
        self.look()

    def warm_up(self) -> float:
        """Compiles what `run` runs, by running it with nothing to do; the seconds that compiling took."""
        compiling, _ = self._advance(int(self.state.cycle), len(self.state.done))
        return compiling

    def end(self, places: Sequence[int]) -> None:
        """Ends answers as they are; their places are free."""
        for place in places:
            self.rows[place].done = True
        self.look()

    def free(self) -> None:
        """Gives the memory of its caches back, whoever may still hold it: a traceback does. Nothing runs after that."""
        for array in jax.tree.leaves((self.request, self.state)):
            if isinstance(array, jax.Array):
                array.delete()

    def results(self, places: Sequence[int] | None = None) -> list[Result]:
        """The answers of the rows in `places` (None: of all); of those that are not done, what there is."""
        rows = self.rows if places is None else [self.rows[place] for place in places]
        return [self.result_of(row) for row in rows]

    def result_of(self, row: Row) -> Result:
        """The answer of a row, or what there is of it."""
        said = row.said
        return Result(
            text=decode(self.model.tokenizer, said.token_ids) if row.stop is None else row.stop.text,
            token_ids=list(said.token_ids),
            finish_reason="stop" if row.stopped or row.stop is not None else "length",
            logprobs=None if said.logprobs is None else list(said.logprobs),
            prompt_tokens=len(row.ask.prompt),
            stats=_stats(row, self.drafter.shape.depth),
        )

    def _begin(self, rows: Sequence[Row], least: int = 1) -> Running:
        """Reads the prompts of new rows, together, with a program for `least` rows at least."""
        padded = [row.ask for row in rows] + [NOBODY] * (least - len(rows))
        request, tokens = layout(self.model, self.drafter, padded, self.room.slots)
        state, compiling, seconds = timed(
            compiled_prefill(),
            *(*self._models, *self._alike(request, tokens)),
            mode=self.mode,
            slots=self.room.slots,
            chunk=chunk_tokens(),
            logprobs=self.room.logprobs,
            over=self.model.over,
        )
        for row in rows:
            row.compile_seconds, row.prefill_seconds = compiling, seconds
            row.first_token_seconds = programs.seconds_since(row.ask.asked)
        return request, state

    def _advance(self, until: int, enough: int) -> tuple[float, float]:
        """Decodes until cycle `until`, or until `enough` rows are done; the seconds that compiling and running took."""
        limits = np.array(until, np.int32), np.array(enough, np.int32)
        self.state, compiling, seconds = timed(
            compiled_advance(),
            *(*self._models, *self._alike(self.request, self.state, *limits)),
            mode=self.mode,
            over=self.model.over,
        )
        return compiling, seconds

    def _alike(self, request: Request, *others: Any) -> tuple[Any, ...]:
        """A request and what belongs to it, as arguments of programs: beside the same models and on one device they are
        of one kind wherever these numbers are the same.
        """
        if self.model.over is not None:
            return request, *others
        name = len(request.limit), len(request.stop_ids), self.room.slots, self.room.logprobs
        return (programs.Alike(name, (request, *others)),)

    def _nobody(self) -> Running:
        """Rows that are done before they begin."""
        request, tokens = layout(self.model, self.drafter, [row.ask for row in self.rows], self.room.slots)
        state, _ = programs.call(
            compiled_nobody(),
            *(*self._models, request, tokens),
            slots=self.room.slots,
            logprobs=self.room.logprobs,
            over=self.model.over,
        )
        return request, state

    def look(self) -> None:
        """Fetches what is new; ends rows in which a stop string turned up."""
        state = self.state
        fetched = (state.tokens, state.came_with, state.length, state.done, state.stopped, state.logprobs)
        tokens, came_with, length, done, stopped, logprobs = to_host(fetched)
        cycles = last_cycles(state.draft) if isinstance(self.drafter, Recorder) else []
        for i, row in enumerate(self.rows):
            if row.done:
                continue
            here = slice(len(row.ask.prompt), int(length[i]) + 1)
            recorded = logprobs[i, here].tolist() if row.ask.options.logprobs else None
            passes = came_with[i, here].tolist()
            trees = {**row.said.trees, passes[-1]: cycles[i]} if cycles and passes[-1] else row.said.trees
            row.said = Said(tokens[i, here].tolist(), passes, recorded, trees, row.decode_seconds)
            if math.isnan(row.first_token_seconds):
                row.first_token_seconds = programs.seconds_since(row.ask.asked)
            row.stop = find_stop(self.model.tokenizer, row.said.token_ids, row.ask.options.stop)
            if row.stop is not None:
                row.said = row.said.until(row.stop.tokens)
            row.done, row.stopped = bool(done[i]) or row.stop is not None, bool(stopped[i])
        finished = np.array([row.done for row in self.rows] + [True] * (len(done) - len(self.rows)))
        if (finished != done).any():
            self.state = dataclasses.replace(state, done=_spread(self.model, jnp.asarray(finished)))


def timed(function: Any, *args: Any, **fixed: Any) -> tuple[DecodeState, float, float]:
    """A state, and the seconds that compiling and running took."""
    start = time.perf_counter()
    state, compiling = programs.call(function, *args, **fixed)
    jax.block_until_ready(state.length)
    return state, compiling, time.perf_counter() - start - compiling


def _stats(row: Row, depth: int) -> Stats:
    """Statistics of an answer, from the cycle that each of its tokens came with (0: with the prompt)."""
    tokens, counted = len(row.said.came_with), collections.Counter(row.said.came_with)
    lengths = [counted[cycle] for cycle in sorted(counted) if cycle > 0]
    cycles, nan = len(lengths), float("nan")
    return Stats(
        cycles=cycles,
        mean_accepted_length=sum(lengths) / cycles if cycles else nan,
        accepted_lengths=lengths,
        accepted_by_depth=[
            sum(length > deep for length in lengths) / cycles if cycles else nan for deep in range(1, depth + 1)
        ],
        compile_seconds=row.compile_seconds,
        prefill_seconds=row.prefill_seconds,
        decode_seconds=row.decode_seconds,
        first_token_seconds=row.first_token_seconds,
        tokens_per_second=(tokens - 1) / row.decode_seconds if tokens > 1 and row.decode_seconds else nan,
    )


def inserted(whole: Running, new: Running, places: Int[Array, " n"], *, over: Sharding | None = None) -> Running:
    """A batch with the rows of another in some of its places. What is not one value a row stays: the cycle's number,
    the stop tokens. Of several rows with one place the first is there in the end.
    """
    request, state = whole
    (asked, begun), rows = new, len(state.done)
    settled = dataclasses.replace(begun, cycle=state.cycle)

    def put(old: Array, new: Array, row: Int[Array, ""]) -> Array:
        one = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
        return jax.lax.dynamic_update_slice_in_dim(old, one, places[row], axis=0)

    def put_all(back: Int[Array, ""], batch: Running) -> Running:
        row = len(places) - 1 - back
        request, state = batch
        joined = jax.tree.map(lambda old, new: put(old, new, row) if old.ndim else old, state, settled)
        admitted = jax.tree.map(lambda old, new: put(old, new, row) if len(old) == rows else old, request, asked)
        return dataclasses.replace(admitted, stop_ids=request.stop_ids), joined

    return jax.lax.fori_loop(0, len(places), put_all, whole)


@functools.cache
def _compiled_insert() -> Any:
    """Donates the batch: its caches are written in place."""
    return jax.jit(spread(inserted), donate_argnums=0, static_argnames="over", compiler_options=loop_options())


def room_for(model: Model, drafter: Drafter, asks: Sequence[Ask], rows: int) -> Room:
    """Room for any `rows` of these requests at a time."""
    return Room(
        rows=rows,
        slots=slots_for(model, drafter, asks),
        mode=mode_of(ask.options for ask in asks),
        logprobs=any(ask.options.logprobs for ask in asks),
    )


def slots_for(model: Model, drafter: Drafter, asks: Sequence[Ask]) -> int:
    """Slots of a cache that holds the longest of the requests."""
    return slots_to_hold(drafter, max(len(ask.prompt) for ask in asks), max(_limit(model, ask) for ask in asks))


def slots_to_hold(drafter: Drafter, prompt: int, tokens: int) -> int:
    """Slots for requests of up to `prompt` tokens, with their answers `tokens`."""
    return slots_beside(drafter.shape.depth, prompt, tokens, chunk_tokens())


def _limit(model: Model, ask: Ask) -> int:
    """Tokens of prompt and answer together at which an answer ends."""
    return min(len(ask.prompt) + ask.options.max_new_tokens, model.context)


def layout(model: Model, drafter: Drafter, asks: Sequence[Ask], slots: int) -> tuple[Request, jax.Array | np.ndarray]:
    """The requests and their prompts, with as many rows as `rows_for` says. On one device they are numpy's: a program
    takes those in a fraction of the time that it takes to make arrays of JAX of them.
    """
    rows = rows_for(model, len(asks))
    padded = [*asks, *[NOBODY] * (rows - len(asks))]
    lengths = np.array([len(ask.prompt) for ask in padded], np.int32)
    limit = np.array([_limit(model, ask) for ask in padded], np.int32)
    limit[[ask is NOBODY for ask in padded]] = 0  # rows that are done before they begin

    tokens = np.zeros((rows, slots + drafter.shape.depth + 1), np.int32)
    for row, ask in enumerate(padded):
        tokens[row, : len(ask.prompt)] = ask.prompt
    request = Request(
        settings=settings_of(
            [ask.options for ask in padded], [ask.seed for ask in padded], [ask.sample for ask in padded]
        ),
        prompt_length=lengths,
        limit=limit,
        stop_ids=np.array(model.stop_ids or (-1,), np.int32),
    )
    return _spread(model, (request, tokens))


def _spread(model: Model, tree: T) -> T:
    """Requests and what belongs to them, over the model's devices."""
    return tree if model.over is None else model.over.put(tree, model.over.state)
