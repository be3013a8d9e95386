"""Many requests through few rows: a finished one makes room for the next."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.loading.model import Model
from eagle_jax.scheduling.batch import Ask, Batch, slots_for
from eagle_jax.scheduling.results import Result


@dataclasses.dataclass
class Use:
    """How full batches were.

    Attributes:
        passes: passes of the target, counted once for every row of the batch.
        used: those of them that brought an answer further.
    """

    passes: int = 0
    used: int = 0

    @property
    def share(self) -> float:
        """Part of the rows that was busy, 0 to 1; nan before there was a pass."""
        return self.used / self.passes if self.passes else float("nan")


def answers(
    model: Model,
    drafter_of: Callable[[Sequence[Ask]], Drafter],
    asks: Sequence[Ask],
    rows: int,
    use: Use | None = None,
) -> Iterator[tuple[Ask, Result]]:
    """Every answer as soon as it is complete, each the one that its request would get alone.

    Requests of one size share a batch, so that short ones do not carry the caches of long ones.

    Args:
        drafter_of: the drafter of a batch of some of these requests.
        rows: requests that share a batch.
        use: counted up, batch by batch.
    """
    use = Use() if use is None else use
    groups: dict[int, list[Ask]] = {}
    for ask in asks:
        size = slots_for(model, Plain(), [ask]).bit_length() if len(asks) > rows else 0
        groups.setdefault(size, []).append(ask)
    for group in groups.values():
        first, waiting = group[:rows], group[rows:][::-1]
        batch = Batch(model, drafter_of(first), first, others=waiting, look=False)
        for ask, result in _through(batch, waiting):
            use.used += result.stats.cycles
            yield ask, result
        use.passes += int(batch.state.cycle) * len(batch.state.done)
        batch.free()  # there may be no room for its caches beside the next one's


def _through(batch: Batch, waiting: list[Ask]) -> Iterator[tuple[Ask, Result]]:
    """Runs until some rows are done, tells them, and goes on with the last of those that wait in their places.

    Of a large batch an eighth of the rows is awaited: their prompts are then read together, and the host looks less
    often. An eighth of the rows idles for as long as it takes to end as many.
    """
    over: set[int] = set()
    while len(over) < len(batch.rows):
        done = [place for place, row in enumerate(batch.rows) if row.done and place not in over]
        for place, result in zip(done, batch.results(done), strict=True):
            yield batch.rows[place].ask, result
        while done and waiting:
            asks = [waiting.pop() for _ in done[: min(batch.together, len(waiting))]]
            places, done = done[: len(asks)], done[len(asks) :]
            batch.admit(places, asks)
        over.update(done)
        if not any(row.done for place, row in enumerate(batch.rows) if place not in over):
            next(batch.run(ends=batch.together), None)
