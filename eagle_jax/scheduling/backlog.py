"""What a drafter has yet to read of a batch that decodes plainly for a while."""

from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.paused import Paused, Ready


class Backlog:
    """Counts the steps of a `Paused` drafter.

    Attributes:
        steps: those that are not read yet, of the row that took part in most of them.
    """

    def __init__(self) -> None:
        self.steps = 0

    def is_due(self, drafter: Drafter, steps: int) -> bool:
        """Whether everything has to be read before this drafter runs `steps` steps, which count as run from now on: it
        drafts, or its room would not do for them.
        """
        further = steps if isinstance(drafter, Paused) else 0
        left = drafter.room - further if isinstance(drafter, Paused) else 0
        due = isinstance(drafter, Ready) and self.steps > left
        self.steps = further if due else self.steps + further
        return due
