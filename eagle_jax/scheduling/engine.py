"""An engine that is always on: requests come from any thread at any time and join the batch that is running."""

import atexit
import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from eagle_jax.checks import whole
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.loading.model import Model
from eagle_jax.scheduling.batch import SILENCE, SILENT, Ask, Batch, Room, Row, Said, slots_to_hold
from eagle_jax.scheduling.chunked_prefill import Newcomer
from eagle_jax.scheduling.generate import asks_for
from eagle_jax.scheduling.options import options_for, seeds_for, stop_strings
from eagle_jax.scheduling.recorder import Recorder
from eagle_jax.scheduling.results import Result
from eagle_jax.scheduling.ticket import CANCELLED, EngineError, Ticket
from eagle_jax.text.prompts import TooLong
from eagle_jax.tuning.methods import drafter_for
from eagle_jax.tuning.sizes import chunk_tokens, rows_for

LONGEST = 4096  # tokens of a request, if nothing is said: caches for a whole context may be larger than the model
PIECE = 256  # prompt tokens that are read before those who are answered already get their turn
MOST_SAMPLES = 2**30  # far from the numbers of positions, which noise is made of too
MOST_CYCLES = 2**30  # cycles are counted in 32 bits; after so many the engine waits for an idle moment and starts anew


class QueueFull(RuntimeError):
    """As many requests wait as may wait; ask again later."""


class EngineClosed(RuntimeError):
    """The engine was closed, or cannot go on, and takes no requests."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What an engine has to do.

    Attributes:
        rows: requests that it can answer at a time.
        busy: requests that it is answering.
        waiting: requests in the queue.
        seconds_to_wait: a guess how long one that joined the queue now would wait.
    """

    rows: int
    busy: int
    waiting: int
    seconds_to_wait: float


class Engine:
    """Answers requests from all threads, `rows` at a time, each with the text that `generate` gives for its seed.

    One thread decodes. A new request joins the batch between two passes, and a finished one leaves it, without
    compiling and without changing what others get; an engine with nothing to do sleeps. Everything is compiled here,
    before the first request.

    Args:
        model: from `load`.
        rows: requests that are answered at a time; a power of two, times the mesh's `data` axis, wastes none.
        max_tokens: most tokens of prompt and answer together; memory for so many is taken for every row. None is the
            model's context, 4096 at most.
        drafter, tree: as in `generate`, the same for all requests.
        max_queue: requests that may wait.
        cycles: target passes between two looks at the answers.
        record: keeps the draft tree of the last pass before each look, which `chunks` then carry.

    Raises:
        ValueError, TypeError: as `generate` does.

    Example:
        >>> import eagle_jax
        >>> from eagle_jax import api
        >>> with api.Engine(eagle_jax.load(), rows=2, max_tokens=128) as engine:
        ...     tickets = [engine.submit("Tom has 3 apples.", seed=seed, temperature=1.0) for seed in range(3)]
        ...     answers = [ticket.result().text for ticket in tickets]
        >>> len(answers)
        3
    """

    def __init__(
        self,
        model: Model,
        *,
        rows: int = 8,
        max_tokens: int | None = None,
        drafter: str | Drafter = "auto",
        tree: Any = "auto",
        max_queue: int = 64,
        cycles: int = 4,
        record: bool = False,
    ):
        self.max_tokens = min(model.context, LONGEST if max_tokens is None else whole("max_tokens", max_tokens, 2))
        self.max_queue, self._cycles = whole("max_queue", max_queue, 1), whole("cycles", cycles, 1)
        sizes = (rows_for(model, whole("rows", rows, 1)), slots_to_hold(Plain(), self.max_tokens - 1, self.max_tokens))
        self.model, drafting = model, drafter_for(model, drafter, tree, *sizes)
        self.drafter: Drafter = Recorder(drafting) if record else drafting
        self._room = Room(
            rows=rows,
            slots=slots_to_hold(self.drafter, self.max_tokens - 1, self.max_tokens),
            mode=Sampling(sampled=True, filtered=True),
            logprobs=True,
        )
        self._piece = max(1, PIECE // chunk_tokens())
        self._batch = Batch(model, self.drafter, room=self._room)
        self._warm_up()

        self._watchers: list[Callable[[Ticket], None]] = []
        self._mean_seconds = 0.0
        self._seats: list[Ticket | None] = [None] * self._room.rows
        self._arriving: Ticket | None = None
        self._newcomer: Newcomer | None = None
        self._tokenizing = threading.Lock()  # tokenizers of several threads at once may refuse
        # What threads share, under the lock of `_changed`:
        self._changed = threading.Condition()
        self._waiting: collections.deque[Ticket] = collections.deque()
        self._closing, self._broken = False, ""
        self._thread = threading.Thread(target=self._decode, name="eagle-jax engine", daemon=True)
        self._thread.start()
        atexit.register(self.close, drain=False)  # a thread that computes must not meet the interpreter's end

    # What any thread may call

    def submit(self, prompt: Any, *, sample: int = 0, **options: Any) -> Ticket:
        """Puts a request into the queue; `submit_all` tells the options and the errors.

        Args:
            sample: the number of the answer, counted from 0, when one prompt and seed have several.
        """
        return self.submit_all([prompt], samples=[sample], **options)[0]

    def submit_all(
        self,
        prompts: Sequence[Any],
        *,
        samples: Sequence[int] = (0,),
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | Sequence[int] = 0,
        stop: str | Sequence[str] | None = None,
        logprobs: bool = False,
    ) -> list[Ticket]:
        """Puts requests into the queue, all of them or none: for each prompt those of `samples`, in order.

        Args:
            prompts: each is text, chat messages or token ids.
            max_new_tokens: longest answer, in tokens; None is what the engine has room for. The rest is as in
                `generate`.

        Raises:
            ValueError, TypeError: as `generate` does; also when a prompt and its answer need more than `max_tokens`.
            QueueFull: there is no room in the queue.
            EngineClosed: the engine takes no requests.
        """
        values = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, logprobs=logprobs)
        stops = stop_strings(stop, self.model.tokenizer)
        asks = self._asks(prompts, max_new_tokens, seed, stop=stops, **values)
        samples = [_sample(number) for number in samples]
        tickets = [
            Ticket(dataclasses.replace(ask, sample=sample), self.model.tokenizer, self._cancel)
            for ask, sample in itertools.product(asks, samples)
        ]
        with self._changed:
            if self._closing or self._broken:
                raise EngineClosed(self._broken or "the engine was closed and takes no more requests")
            if len(self._waiting) + len(tickets) > self.max_queue:
                raise QueueFull(
                    f"{len(self._waiting)} of {self.max_queue} places in the queue are taken and {len(tickets)} were "
                    "asked for; ask again later"
                )
            self._waiting.extend(tickets)
            self._changed.notify_all()
        return tickets

    def room_for(self, prompt: Any, max_new_tokens: int | None = None) -> int:
        """Tokens that an answer may have here: `max_new_tokens`, or all that there is room for beside its prompt.

        Raises:
            ValueError, TypeError: as `submit_all` does of the prompt and its length.
        """
        (ask,) = self._asks([prompt], max_new_tokens, 0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        return ask.options.max_new_tokens

    @property
    def load(self) -> Load:
        """What there is to do at this moment."""
        waiting, busy = len(self._waiting), sum(seat is not None for seat in self._seats)
        seconds = self._mean_seconds * (waiting + 1) / self._room.rows
        return Load(rows=self._room.rows, busy=busy, waiting=waiting, seconds_to_wait=seconds)

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return not self._closing and not self._broken

    def watch(self, watcher: Callable[[Ticket], None]) -> None:
        """Calls `watcher` with every ticket that is over; it must be quick and not raise. It is called on the engine's
        thread, or, of a request that was cancelled in the queue, on the thread that cancelled it.
        """
        self._watchers.append(watcher)

    def close(self, *, drain: bool = True) -> None:
        """Takes no more requests, and ends when those that it has are answered; without `drain` they are cancelled."""
        with self._changed:
            self._closing = True
            tickets = [] if drain else [*self._waiting, *self._at_work()]
            self._changed.notify_all()
        for ticket in tickets:
            ticket.cancel()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close(drain=error[0] is None)

    def _asks(self, prompts: Sequence[Any], max_new_tokens: int | None, seed: Any, **values: Any) -> list[Ask]:
        """The requests for answers of `max_new_tokens` at most, or as long as there is room."""
        longest = 1 if max_new_tokens is None else max_new_tokens
        options = options_for(len(prompts), max_new_tokens=longest, **values)
        with self._tokenizing:
            asks = asks_for(self.model, list(prompts), options, seeds_for(seed, len(prompts)), 1)
        return [self._fitted(ask, whole_rest=max_new_tokens is None) for ask in asks]

    def _fitted(self, ask: Ask, *, whole_rest: bool) -> Ask:
        """Refuses what needs more than there is room for."""
        length, room = len(ask.prompt), self.max_tokens - len(ask.prompt)
        if room < 1:
            raise TooLong(
                f"the prompt has {length} tokens; this engine has room for {self.max_tokens} of prompt and answer "
                f"together, so it can be {self.max_tokens - 1} at most"
            )
        if whole_rest:
            return dataclasses.replace(ask, options=dataclasses.replace(ask.options, max_new_tokens=room))
        if ask.options.max_new_tokens > room:
            raise TooLong(
                f"the prompt has {length} tokens and its answer may have {ask.options.max_new_tokens}; this engine has "
                f"room for {self.max_tokens} together, so ask for {room} at most"
            )
        return ask

    def _cancel(self, ticket: Ticket) -> None:
        with self._changed:
            waits = ticket in self._waiting
            if waits:
                self._waiting.remove(ticket)
            self._changed.notify_all()
        if waits:
            self._over_unsaid(ticket)

    # What the engine's own thread does

    def _warm_up(self) -> None:
        """Compiles everything that a request runs, by reading one. A tokenizer's first use may change it (it turns
        truncation off), which must not happen while another thread uses it.
        """
        if self.model.tokenizer is not None:
            self.model.tokenizer("a")
        options = dataclasses.replace(SILENT, max_new_tokens=2, temperature=1.0, top_p=0.5)
        newcomer = Newcomer(self._batch, Ask(index=0, prompt=[0], options=options, seed=0, sample=0))
        newcomer.read(1)
        newcomer.sit(0)
        self._batch.warm_up()
        self._batch.end([0])

    def _decode(self) -> None:
        while self._has_work():
            try:
                self._let_go()
                self._welcome()
                self._advance()
            except Exception as error:  # whatever it is, those who wait for an answer have to hear of it
                self._recover(error)

    def _has_work(self) -> bool:
        """Sleeps until there is something to do; False when there never will be."""
        with self._changed:
            while not self._waiting and not self._at_work():
                if self._closing or self._broken:
                    return False
                self._changed.wait()
        return True

    def _at_work(self) -> list[Ticket]:
        return [ticket for ticket in (self._arriving, *self._seats) if ticket is not None]

    def _let_go(self) -> None:
        """Makes room where nobody wants the answer any more."""
        gone = [place for place, ticket in enumerate(self._seats) if ticket is not None and ticket.cancelled]
        if gone:
            self._batch.end(gone)
            self._tell()
        if self._arriving is not None and self._arriving.cancelled:
            ticket, self._arriving, self._newcomer = self._arriving, None, None
            self._over_unsaid(ticket)

    def _welcome(self) -> None:
        """Reads prompts of newcomers, and no more than one piece: then it is the turn of those who are answered."""
        left = self._piece
        while left > 0:
            ticket = self._arriving or self._next()
            if ticket is None:
                return
            try:
                newcomer = self._newcomer = self._newcomer or Newcomer(self._batch, ticket.ask)
                left -= newcomer.read(left)
            except Exception as error:  # the others have nothing to do with it
                self._arriving, self._newcomer = None, None
                self._fail(ticket, error)
                continue
            if not newcomer.unread:
                place = self._seats.index(None)
                newcomer.sit(place)
                self._seats[place], self._arriving, self._newcomer = ticket, None, None
                self._tell()

    def _next(self) -> Ticket | None:
        """The first in the queue, if there is a place for it."""
        if None not in self._seats:
            return None
        if int(self._batch.state.cycle) > MOST_CYCLES:
            if any(self._seats):
                return None
            self._begin_anew()
        with self._changed:
            ticket = self._arriving = self._waiting.popleft() if self._waiting else None  # never in neither place
        if ticket is not None:
            ticket.begin()
        return ticket

    def _advance(self) -> None:
        if any(self._seats):
            next(self._batch.run(self._cycles, ends=1), None)
            self._tell()

    def _tell(self) -> None:
        """Tells everyone what there is of their answers; those who have all of it leave."""
        for place, ticket in enumerate(self._seats):
            if ticket is None:
                continue
            row = self._batch.rows[place]
            if not row.done:
                ticket.tell(row.said)
                continue
            result = self._batch.results([place])[0]
            if ticket.cancelled:
                result = dataclasses.replace(result, finish_reason=CANCELLED)
            self._seats[place] = None
            self._over(ticket, row.said, result)

    def _over(self, ticket: Ticket, said: Said, result: Result | None, error: EngineError | None = None) -> None:
        ticket.tell(said, result, error)
        if result is not None and ticket.seconds is not None and ticket.waited is not None:
            self._mean_seconds += 0.1 * (ticket.seconds - ticket.waited - self._mean_seconds)
        for watcher in self._watchers:
            watcher(ticket)

    def _over_unsaid(self, ticket: Ticket) -> None:
        """Of a request that was cancelled before its first token."""
        nothing = self._batch.result_of(Row(ticket.ask))
        self._over(ticket, SILENCE, dataclasses.replace(nothing, finish_reason=CANCELLED))

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        said, *_ = ticket.news
        self._over(ticket, said, None, EngineError(f"the engine failed at this answer, {_short(error)}; ask again"))

    def _recover(self, error: Exception) -> None:
        """The batch is lost, and with it the answers under way; those that wait are answered by a new one."""
        lost = self._at_work()
        self._seats, self._arriving, self._newcomer = [None] * self._room.rows, None, None
        try:
            if not lost:  # it fails with nothing to do
                raise error
            self._begin_anew()
        except Exception as again:
            with self._changed:
                self._broken = f"the engine cannot go on, {_short(again)}; start it anew"
                lost += self._waiting
                self._waiting.clear()
        for ticket in lost:
            self._fail(ticket, error)

    def _begin_anew(self) -> None:
        """A new batch in the memory of the old one: there may be none for two."""
        self._batch.free()
        self._batch = Batch(self.model, self.drafter, room=self._room)


def _sample(number: Any) -> int:
    if whole("sample", number, 0) >= MOST_SAMPLES:
        raise ValueError(f"sample={number}; expected a whole number below {MOST_SAMPLES}")
    return int(number)


def _short(error: Exception) -> str:
    """One line about an error of another library."""
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line[:200]}"
