"""Programs for requests whose tables are larger than most, compiled in another thread than the engine's."""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Sequence

from eagle_jax.requests.request import WITH_TABLES, Request
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.chunked_prefill import ChunkedPrefill
from eagle_jax.scheduling.prefix_cache import PrefixCache
from eagle_jax.structured.table_sizes import TableSizes, sizes_for

log = logging.getLogger("eagle_jax.scheduling")


class TablePrograms:
    """The table sizes that an engine has programs for. Others are compiled one after another on a
    thread of their own, so that running answers do not wait for them.

    Attributes:
        sizes: sizes that programs are compiled for.
    """

    def __init__(self) -> None:
        self.sizes = [TableSizes()]
        self._compiling: tuple[TableSizes, concurrent.futures.Future[None]] | None = None
        self._closed = threading.Event()
        self._compiler = concurrent.futures.ThreadPoolExecutor(1, "eagle-jax compiling")

    def cover(self, requests: Sequence[Request], batch: Batch) -> bool:
        """Returns whether there are programs for these requests as rows of the batch; if not, they will be compiled.

        Raises:
            Exception: compiling failed; it is tried again for the next request.
        """
        table_sizes = sizes_for([r.bad_words for r in requests], [r.automaton for r in requests])
        if self._compiling is not None and self._compiling[1].done() and not self._has(table_sizes):
            (sizes, compiled), self._compiling = self._compiling, None
            error = compiled.exception()
            if error is None:
                self.sizes.append(sizes)
            elif sizes.covers(table_sizes):
                raise error
            else:  # the request was cancelled meanwhile
                log.error("programs for larger tables were not compiled", exc_info=error)
        if self._has(table_sizes):
            return True
        if self._compiling is None:
            prefill = ChunkedPrefill(batch, WITH_TABLES, PrefixCache(0))
            steps = batch.preparation(table_sizes), prefill.preparation(table_sizes)
            self._compiling = table_sizes, self._compiler.submit(self._run, steps)
        return False

    def wait(self, seconds: float) -> None:
        """Waits for the programs that are being compiled, if any, for at most `seconds`."""
        if self._compiling is not None:
            concurrent.futures.wait([self._compiling[1]], seconds)

    def close(self) -> None:
        """Stops compiling after the current program."""
        self._closed.set()
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _run(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            if not self._closed.is_set():
                step()

    def _has(self, table_sizes: TableSizes) -> bool:
        return any(sizes.covers(table_sizes) for sizes in self.sizes)
