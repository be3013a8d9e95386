"""The committed rows that a drafter has yet to read while a batch decodes plainly."""

from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.paused import Paused, Ready


class Backlog:
    """Counts the steps of a `Paused` drafter.

    Attributes:
        steps: number of unread steps of the row that has most of them.
    """

    def __init__(self) -> None:
        self.steps = 0

    def advance(self, drafter: Drafter, steps: int) -> bool:
        """Counts the next `steps` steps of this drafter; returns whether unread rows have to be read before them."""
        further = steps if isinstance(drafter, Paused) else 0
        left = drafter.room - further if isinstance(drafter, Paused) else 0
        due = isinstance(drafter, Ready) and self.steps > left
        self.steps = further if due else self.steps + further
        return due
