"""Counts compilations, so that measurements can exclude them."""

import contextlib
from collections.abc import Iterator

import jax.monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Compiles:
    """Number of programs compiled, or loaded from the persistent cache, and the time in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            self.count += 1
            self.seconds += duration_secs


@contextlib.contextmanager
def counting_compiles() -> Iterator[Compiles]:
    """Counts compilations in the block: `with counting_compiles() as compiles: ...; compiles.count`."""
    compiles = Compiles()
    jax.monitoring.register_event_duration_secs_listener(compiles.add)
    try:
        yield compiles
    finally:
        jax.monitoring.unregister_event_duration_listener(compiles.add)
