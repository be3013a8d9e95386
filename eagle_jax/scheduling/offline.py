"""Requests that are all there from the beginning: batches that stay full, of requests of one size."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.loading.model import Model
from eagle_jax.requests.request import Request
from eagle_jax.scheduling.batch_shape import shape_for, slots_for
from eagle_jax.scheduling.scheduler import Event, Scheduler


@dataclasses.dataclass
class Utilisation:
    """The share of batches' rows that were in use.

    Attributes:
        row_steps: steps times rows of the batch.
        used: how many of these committed tokens of an answer.
    """

    row_steps: int = 0
    used: int = 0

    @property
    def fraction(self) -> float:
        """Share of the rows in use, 0 to 1; nan before the first step."""
        return self.used / self.row_steps if self.row_steps else float("nan")


def run(
    model: Model,
    requests: Sequence[Request],
    rows: int,
    drafter_of: Callable[[Sequence[Request]], Drafter],
    *,
    steps: int | None = None,
    utilisation: Utilisation | None = None,
) -> Iterator[Event]:
    """Yields the events of all requests; of each, the last one has the result.

    Requests of one size share a batch, so that short ones do not carry the caches of long ones.

    Args:
        rows: requests that share a batch.
        drafter_of: the drafter of a batch that begins with these requests.
        steps: see `Scheduler`.
        utilisation: updated batch by batch.
    """
    groups: dict[int, list[Request]] = {}
    for request in requests:
        size = slots_for(model, Plain(), [request]).bit_length() if len(requests) > rows else 0
        groups.setdefault(size, []).append(request)
    for group in groups.values():
        drafter = drafter_of(group[:rows])
        scheduler = Scheduler(model, drafter, shape_for(model, drafter, group, min(rows, len(group))), steps=steps)
        for request in group:
            scheduler.submit(request)
        while scheduler.busy:
            for event in scheduler.step():
                if utilisation is not None and event.result is not None:
                    utilisation.used += event.result.stats.steps
                yield event
        if utilisation is not None:
            utilisation.row_steps += scheduler.row_steps
        scheduler.close()  # there may be no room for its caches and the next one's
