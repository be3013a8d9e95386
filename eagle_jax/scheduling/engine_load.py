"""How busy an engine is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Load:
    """What an engine has to do.

    Attributes:
        rows: requests that it can answer at a time.
        busy: requests that it is answering.
        waiting: requests in the queue.
        seconds_to_wait: a guess how long one that joined the queue now would wait.
        prefix_bytes: that kept prefixes of prompts take.
    """

    rows: int
    busy: int
    waiting: int
    seconds_to_wait: float
    prefix_bytes: int


class Pace:
    """How long answers take once they are begun: a mean in which the last ones weigh most."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Takes one more answer into the mean."""
        self._seconds += 0.1 * (seconds - self._seconds)

    def load(self, rows: int, busy: int, waiting: int, prefix_bytes: int) -> Load:
        """Returns the load, with a guess of the wait."""
        return Load(rows, busy, waiting, self._seconds * (waiting + 1) / rows, prefix_bytes)
