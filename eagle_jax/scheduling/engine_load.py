"""The load of an engine."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of an engine.

    Attributes:
        rows: maximum number of requests that are answered at a time.
        busy: requests that are being answered.
        waiting: requests in the queue.
        seconds_to_wait: estimated wait of a request that joins the queue now.
        prefix_bytes: bytes of cached prompt prefixes.
    """

    rows: int
    busy: int
    waiting: int
    seconds_to_wait: float
    prefix_bytes: int


class Pace:
    """The mean time of an answer from its prefill to its end, recent answers weighing most."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Takes one more answer into the mean."""
        self._seconds += 0.1 * (seconds - self._seconds)

    def load(self, rows: int, busy: int, waiting: int, prefix_bytes: int) -> Load:
        """Returns the load, with a guess of the wait."""
        return Load(rows, busy, waiting, self._seconds * (waiting + 1) / rows, prefix_bytes)
