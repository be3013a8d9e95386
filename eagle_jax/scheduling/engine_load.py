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
