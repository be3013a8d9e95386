"""An engine that is always on: requests come from any thread at any time and join the batch that is running."""

import atexit
import collections
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from eagle_jax.checks import whole_number
from eagle_jax.converters.errors import in_a_line
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.methods.budgets import Budget
from eagle_jax.methods.choice import choose
from eagle_jax.requests.options import stop_strings
from eagle_jax.requests.processing import Processing
from eagle_jax.requests.request import NO_OUTPUT, PartialOutput
from eagle_jax.requests.results import Result
from eagle_jax.requests.ticket import EngineClosed, EngineError, Ticket, refuse_full_queue
from eagle_jax.scheduling.admission import admit
from eagle_jax.scheduling.engine_load import Load, Pace
from eagle_jax.scheduling.engine_scheduler import PREFILL_TOKENS, scheduler_for_any
from eagle_jax.scheduling.intake import Intake
from eagle_jax.scheduling.measured import Spent
from eagle_jax.scheduling.prefix_cache import PREFIX_CACHE_BYTES
from eagle_jax.scheduling.row import cancelled_result
from eagle_jax.scheduling.scheduler import Event
from eagle_jax.scheduling.scoring_queue import COMPILING_SECONDS, ScoringQueue

log = logging.getLogger("eagle_jax.scheduling")
DEFAULT_MAX_TOKENS = 4096  # of a request: caches for a whole context may be larger than the model


class Engine:
    """Answers requests from all threads, `rows` at a time, each with the text that `generate` gives for its seed.

    One thread decodes. A new request joins the batch between two steps, and a finished one leaves it, without
    compiling and without changing what others get; an engine with nothing to do sleeps. Everything is compiled here,
    before the first request, but programs for structured output of unusual size, for which its request waits.

    Args:
        model: from `load`.
        rows: requests that are answered at a time; a power of two, times the mesh's `data` axis, wastes none.
        max_tokens: most tokens of prompt and answer together; memory for so many is taken for every row. None is the
            model's context, 4096 at most.
        drafter, tree: as in `generate`, the same for all requests.
        max_queue: requests that may wait.
        steps: how many there are between two polls of the answers.
        record: keeps the draft tree of the last step before each poll, which `chunks` then carry.
        prefix_cache_bytes: memory for what was read of prompts, so that others that begin alike start from it; or 0.

    Attributes:
        by_load: the drafters, by how many rows have a request.

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
        steps: int = 4,
        record: bool = False,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ):
        max_tokens = DEFAULT_MAX_TOKENS if max_tokens is None else whole_number("max_tokens", max_tokens, 2)
        self.max_tokens, self.max_queue = min(model.context, max_tokens), whole_number("max_queue", max_queue, 1)
        steps, rows = whole_number("steps", steps, 1), whole_number("rows", rows, 1)
        self.model, self._choice = model, choose(model, drafter, tree)
        sizes = rows, self.max_tokens, steps, whole_number("prefix_cache_bytes", prefix_cache_bytes, 0)
        self.by_load, self._scheduler = scheduler_for_any(model, self._choice, *sizes, record=record)
        self.drafter = self._scheduler.drafter
        self._scheduler.warm_up()
        self.intake = Intake(model, self.max_tokens)
        self._watchers, self._pace = list[Callable[[Ticket], None]](), Pace()
        # What threads share, under the lock of `_changed`:
        self._changed = threading.Condition()
        self._waiting: collections.deque[Ticket] = collections.deque()
        self._running: dict[int, Ticket] = {}  # by the scheduler's id
        self._scoring = ScoringQueue(model, self._changed, PREFILL_TOKENS)
        self._closing, self._broken = False, ""
        self._thread = threading.Thread(target=self._decode, name="eagle-jax engine", daemon=True)
        self._thread.start()
        atexit.register(self.close, drain=False)  # a thread that computes must not meet the interpreter's end

    def submit(self, prompt: Any, *, sample: int = 0, **options: Any) -> Ticket:
        """Queues a request as `submit_all` does, for sample number `sample` of the prompt and seed."""
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
        top_logprobs: int = 0,
        cache_salt: str = "",
        **processing: Unpack[Processing],
    ) -> list[Ticket]:
        """Queues the requests of all prompts and samples, in order; either all or none.

        Args:
            prompts: each is text, chat messages or token ids.
            max_new_tokens: longest answer, in tokens; None is what the engine has room for. The rest is as in
                `generate`, with at most 8 `stop_token_ids`.
            cache_salt: prompts with different salts share no cached prefix, so times reveal nothing of other prompts.

        Raises:
            ValueError, TypeError: as `generate` does; also when a prompt and its answer need more than `max_tokens`.
            QueueFull: there is no room in the queue.
            EngineClosed: the engine takes no requests.
        """
        values = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, **processing)
        values |= dict(logprobs=logprobs, top_logprobs=top_logprobs)
        stops = stop_strings(stop, self.model.tokenizer)
        requests = self.intake.requests(prompts, max_new_tokens, seed, cache_salt, samples, stop=stops, **values)
        tickets = [Ticket(request, self.model.tokenizer, self._cancel) for request in requests]
        return self._enqueue(self._waiting, tickets)

    def submit_scores(self, prompts: Sequence[Any], *, top_logprobs: int = 0) -> list[Ticket]:
        """Puts prompts into a queue of their own; they are scored between the steps of running answers.

        A result has no tokens, but `prompt_logprobs`. The first prompt of a size waits for its program to be compiled,
        which answers do not. Raises as `submit_all` does, and of a prompt of more than `max_tokens`.
        """
        requests = self.intake.to_score(prompts, top_logprobs)
        tickets = [Ticket(request, self.model.tokenizer, self._scoring.cancel) for request in requests]
        return self._enqueue(self._scoring.waiting, tickets)

    def room_for(self, prompt: Any, max_new_tokens: int | None = None) -> int:
        """Returns how many tokens an answer may have: `max_new_tokens`, or what fits; raises as `encode`."""
        return self.intake.room_for(prompt, max_new_tokens)

    def encode(self, prompt: Any) -> list[int]:
        """Returns the token ids of a prompt; raises what `submit_all` raises of it."""
        return self.intake.encode(prompt)

    @property
    def load(self) -> Load:
        """The current load."""
        rows, prefix_bytes = self._scheduler.shape.rows, self._scheduler.prefixes.bytes
        return self._pace.load(rows, len(self._running), len(self._waiting), prefix_bytes)

    @property
    def spent(self) -> list[tuple[int, Spent]]:
        """The time of the steps so far, by the batch's rows and by the nodes of their trees."""
        return [] if self._scheduler.measured is None else self._scheduler.measured.spent()

    def findings(self) -> list[Budget]:
        """Returns the fastest trees so far, for `budgets.save`; none where a tree was asked for or little was run."""
        measured = self._scheduler.measured
        return [] if measured is None else measured.findings(self._choice, self._scheduler.shape.slots)

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""
        return not self._closing and not self._broken

    def watch(self, watcher: Callable[[Ticket], None]) -> None:
        """Calls `watcher` with every finished ticket, on the engine or the cancelling thread; it must not raise."""
        self._watchers.append(watcher)

    def close(self, *, drain: bool = True) -> None:
        """Accepts no more requests and ends once the present ones are answered, or cancelled without `drain`."""
        self.intake.stop_forms()
        with self._changed:
            self._closing = True
            tickets = [] if drain else [*self._waiting, *self._running.values(), *self._scoring.tickets]
            self._changed.notify_all()
        for ticket in tickets:
            ticket.cancel()
        self._thread.join()
        self._scoring.close()
        self._scheduler.stop_compiling()
        atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close(drain=error[0] is None)

    def _enqueue(self, queue: collections.deque[Ticket], tickets: list[Ticket]) -> list[Ticket]:
        with self._changed:
            if self._closing or self._broken:
                raise EngineClosed(self._broken or "the engine was closed and takes no more requests")
            refuse_full_queue(len(queue), len(tickets), self.max_queue)
            queue.extend(tickets)
            self._changed.notify_all()
        return tickets

    def _cancel(self, ticket: Ticket) -> None:
        with self._changed:
            waits = ticket in self._waiting
            if waits:
                self._waiting.remove(ticket)
            self._changed.notify_all()
        if waits:
            result = cancelled_result(ticket.request, self.model.tokenizer, self.drafter.shape.depth)
            self._finish(ticket, NO_OUTPUT, result)

    # What the engine's own thread does

    def _decode(self) -> None:
        while self._has_work():
            try:
                for id, ticket in list(self._running.items()):
                    if ticket.cancelled:
                        self._scheduler.cancel(id)
                self._submit_waiting()
                for event in self._scheduler.step():
                    self._report(event)
                self._scoring.step(idle=not self._running)
            except Exception as error:  # any error is reported to the waiting callers
                self._recover(error)

    def _has_work(self) -> bool:
        """Sleeps until there is something to do; False when there never will be."""
        with self._changed:
            while not (self._waiting or self._running or self._scoring.tickets):
                if self._closing or self._broken:
                    return False
                self._changed.wait()
        return True

    def _submit_waiting(self) -> None:
        with self._changed:
            begun, failed = admit(self._waiting, self._scheduler)
            self._running |= begun
        for ticket, error in failed:
            self._fail([ticket], error)
        if not self._running and not self._scoring.tickets:
            self._scheduler.tables.wait(COMPILING_SECONDS)

    def _report(self, event: Event) -> None:
        ticket = self._running[event.id]
        if event.result is None and event.error is None:
            ticket.update(event.output)
            return
        del self._running[event.id]
        if event.error is None:
            return self._finish(ticket, event.output, event.result)
        self._fail([ticket], event.error)

    def _finish(
        self, ticket: Ticket, output: PartialOutput, result: Result | None, error: EngineError | None = None
    ) -> None:
        ticket.update(output, result, error)
        if result is not None and ticket.seconds is not None and ticket.waited is not None:
            self._pace.add(ticket.seconds - ticket.waited)
        for watcher in self._watchers:
            watcher(ticket)

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        log.error("the engine failed at %d answers", len(tickets), exc_info=error)
        for ticket in tickets:
            failed = EngineError(f"the engine failed while making this answer, {in_a_line(error)}; ask again")
            self._finish(ticket, ticket.latest.output, None, failed)

    def _recover(self, error: Exception) -> None:
        """Fails the answers under way, whose batch is lost; a new batch answers the waiting requests."""
        lost = list(self._running.values())
        self._running.clear()
        try:
            if not lost:  # it fails with nothing to do
                raise error
            self._scheduler.restart()
        except Exception as again:
            log.error("the engine cannot go on", exc_info=again)
            with self._changed:
                self._broken = f"the engine cannot go on, {in_a_line(again)}; start it anew"
                lost += self._waiting
                self._waiting.clear()
            self._scoring.fail(EngineError(self._broken))
        self._fail(lost, error)
