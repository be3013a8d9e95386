"""Compiles and caches the automata of structured output, and stacks them into a batch's tables."""

import collections
import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eagle_jax.decoding.automata import Automata
from eagle_jax.structured.form_workers import POLL_SECONDS, STOPPED, FormsBusy, FormsStopped, FormWorkers
from eagle_jax.structured.forms import Form
from eagle_jax.structured.table_sizes import TableSizes, distinct_automata
from eagle_jax.structured.token_automaton import TokenAutomaton
from eagle_jax.text.token_bytes import drops_first_space, token_bytes

CACHE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class CompiledAutomaton:
    """An automaton, and the seconds that compiling it took: 0 if it was cached."""

    automaton: TokenAutomaton
    seconds: float


class _AutomatonCache:
    """An LRU cache of automata, by form and tokenizer."""

    def __init__(self) -> None:
        # an entry keeps its tokenizer alive: id(tokenizer) is part of the key and must not be reused
        self._entries: collections.OrderedDict[Any, tuple[TokenAutomaton, Any]] = collections.OrderedDict()
        self._making: dict[Any, concurrent.futures.Future[None]] = {}
        self._lock = threading.Lock()

    def get(
        self, key: Any, make: Callable[[], TokenAutomaton], tokenizer: Any, stopping: threading.Event
    ) -> tuple[TokenAutomaton, bool]:
        """Returns the automaton, and whether it was cached; waits for another request that is compiling it.

        Raises:
            FormsStopped: `stopping` was set while waiting.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key][0], True
                in_progress = self._making.get(key)
                if in_progress is None:
                    future = self._making[key] = concurrent.futures.Future()
            if in_progress is None:
                return self._make(key, make, tokenizer, future), False
            while not concurrent.futures.wait([in_progress], POLL_SECONDS).done:
                if stopping.is_set():
                    raise FormsStopped(STOPPED)
            error = in_progress.exception()
            if isinstance(error, (ValueError, ImportError, FormsBusy)):  # a second attempt would fail alike
                raise error

    def _make(
        self, key: Any, make: Callable[[], TokenAutomaton], tokenizer: Any, future: concurrent.futures.Future[None]
    ) -> TokenAutomaton:
        try:
            automaton = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._entries[key] = automaton, tokenizer
            while len(self._entries) > 1 and sum(entry.nbytes for entry, _ in self._entries.values()) > CACHE_BYTES:
                self._entries.popitem(last=False)
        future.set_result(None)
        return automaton


_cache = _AutomatonCache()
_workers = FormWorkers()


def make_automaton(
    form: Form,
    tokenizer: Any,
    vocab_size: int,
    stop_ids: Sequence[int],
    stopping: threading.Event | None = None,
    *,
    begins_text: bool = False,
) -> CompiledAutomaton:
    """Returns the compiled automaton of a form.

    Args:
        stopping: once it is set, the call waits only for automata that are nearly complete.
        begins_text: whether no text precedes the answer, so that a decoder may drop its first space.

    Raises:
        ValueError: no answer matches, the automaton is too large, or the model lacks a tokenizer or a stop token.
        ImportError: outlines-core is not installed.
        FormsBusy, FormsStopped: as `FormWorkers.make` does.
    """
    if tokenizer is None or not stop_ids:
        missing = "tokenizer" if tokenizer is None else "stop token"
        raise ValueError(f"structured output needs a {missing}, but the model has none; leave {form.name} out")
    form = dataclasses.replace(form, drops_space=begins_text and drops_first_space(tokenizer, vocab_size))
    key = id(tokenizer), vocab_size, tuple(stop_ids), form
    start, stop_event = time.perf_counter(), stopping or threading.Event()
    automaton, is_cached = _cache.get(
        key,
        lambda: _workers.make(form, token_bytes(tokenizer, vocab_size), stop_ids, stop_event),
        tokenizer,
        stop_event,
    )
    return CompiledAutomaton(automaton, 0.0 if is_cached else time.perf_counter() - start)


def automata_of(rows: Sequence[TokenAutomaton | None], vocab_size: int, sizes: TableSizes) -> Automata:
    """Returns the tables of a batch, padded to `sizes`."""
    distinct = distinct_automata(rows)
    index_of = {id(automaton): index for index, automaton in enumerate(distinct)}
    count, states, classes, masks = sizes.automata, sizes.states, sizes.classes, sizes.masks
    tables = Automata(
        of_row=np.array([-1 if automaton is None else index_of[id(automaton)] for automaton in rows], np.int32),
        token_class=np.zeros((count, vocab_size), np.int32),
        next=np.full((count, states, classes), -1, np.int32),
        mask_of_state=np.zeros((count, states), np.int32),
        masks=np.zeros((count, masks, -(-vocab_size // 32)), np.uint32),
    )
    for index, automaton in enumerate(distinct):
        tables.token_class[index] = automaton.token_class
        tables.next[index, : len(automaton.next), : automaton.next.shape[1]] = automaton.next
        tables.mask_of_state[index, : len(automaton.next)] = automaton.mask_of_state
        tables.masks[index, : len(automaton.masks)] = automaton.masks
    return tables
