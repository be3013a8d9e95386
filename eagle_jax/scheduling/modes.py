"""The modes of the loop that a batch has programs for, and the mode of its next steps."""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Sequence

import jax

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.requests.options import joint_mode
from eagle_jax.requests.request import Request
from eagle_jax.structured.table_sizes import TableSizes

log = logging.getLogger("eagle_jax.scheduling")
MAX_MODES = 6  # modes that are compiled in the background: each is a program for every number of rows and every tree
Key = tuple[Sampling, TableSizes | None]  # tables of what the rows ask of their logits, if they ask for anything


class Modes:
    """The mode `general` serves every request that a batch may have, with conditionals around what no row asks for.

    Programs without conditionals, for what the rows of the moment ask for and no more, are a matter of speed: tokens
    are the same. `common` modes are compiled by `Batch.warm_up`, others, if at all, in the `background` on a thread of
    their own; until they are there, steps take `general`.
    """

    def __init__(self, general: Sampling, common: Sequence[Sampling] = (), *, background: bool = False):
        self.general, self._common, self._background = general, list(common), background
        self._ready: set[Key] = {(mode, None) for mode in common}
        self._requested: set[Key] = set()
        self._compiling: concurrent.futures.Future[None] | None = None
        self._closed = threading.Event()
        self._compiler = concurrent.futures.ThreadPoolExecutor(1, "eagle-jax compiling modes")

    def to_warm(self, requests: Sequence[Request]) -> list[Sampling]:
        """Modes to compile before the first step, for such requests."""
        tables = any(request.options.changes_logits for request in requests)
        return [self.general] if tables else [self.general, *self._common]

    def choose(
        self,
        requests: Sequence[Request],
        sizes: TableSizes | None,
        preparation: Callable[[TableSizes | None, Sampling], Callable[[], None]],
    ) -> Sampling:
        """Returns the mode of the next steps.

        Args:
            requests: requests of the rows that are not done.
            sizes: sizes of their tables; None if they have none.
            preparation: `Batch.preparation`.
        """
        if not (self._common or self._background):
            return self.general
        key = joint_mode([request.options.mode for request in requests]), sizes
        if key in self._ready:
            return key[0]
        idle = self._compiling is None or self._compiling.done()
        is_new = key not in self._requested and len(self._requested) < MAX_MODES
        if self._background and idle and is_new and not self._closed.is_set():
            self._requested.add(key)
            self._compiling = self._compiler.submit(self._compile, key, preparation(sizes, key[0]))
        return self.general

    def wait(self, seconds: float) -> None:
        """Waits for the program that is being compiled, if any, for at most `seconds`."""
        if self._compiling is not None:
            concurrent.futures.wait([self._compiling], seconds)

    def close(self) -> None:
        """Stops compiling after the current program."""
        self._closed.set()
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _compile(self, key: Key, compile_programs: Callable[[], None]) -> None:
        try:
            compile_programs()
        except Exception as error:  # the general mode serves these rows too
            log.error("programs for %s were not compiled", key[0], exc_info=error)
        else:
            self._ready.add(key)


def for_any_request(general: Sampling) -> Modes:
    """Returns the modes of an engine. A CPU has the general one alone: conditionals cost it nothing, and a second
    program for every tree would delay its start. Accelerators have greedy decoding too, and GPUs, whose host waits for
    each predicate, what else is asked for.
    """
    backend = jax.default_backend()
    return Modes(general, [] if backend == "cpu" else [joint_mode([])], background=backend == "gpu")
