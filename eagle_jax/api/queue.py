"""Many requests through few rows: a finished one makes room for the next."""

from collections.abc import Iterator, Sequence

from eagle_jax.api.batch import Ask, Batch, slots_for
from eagle_jax.api.model import Model
from eagle_jax.api.results import Result
from eagle_jax.drafters.base import Drafter


def answers(model: Model, drafter: Drafter, asks: Sequence[Ask], rows: int) -> Iterator[tuple[Ask, Result]]:
    """Every answer as soon as it is complete, each the one that its request would get alone.

    Requests of one size share a batch, so that short ones do not carry the caches of long ones.
    """
    groups: dict[int, list[Ask]] = {}
    for ask in asks:
        size = slots_for(model, drafter, [ask]).bit_length() if len(asks) > rows else 0
        groups.setdefault(size, []).append(ask)
    for group in groups.values():
        first, waiting = group[:rows], group[rows:][::-1]
        yield from _through(Batch(model, drafter, first, others=waiting), waiting)


def _through(batch: Batch, waiting: list[Ask]) -> Iterator[tuple[Ask, Result]]:
    """Runs until a row is done, tells it, and goes on with the last of those that wait in its place."""
    over: set[int] = set()
    while len(over) < len(batch.rows):
        done = [place for place, row in enumerate(batch.rows) if row.done and place not in over]
        for place, result in zip(done, batch.results(done), strict=True):
            yield batch.rows[place].ask, result
            if waiting:
                batch.admit(place, waiting.pop())
            else:
                over.add(place)
        if not done:
            next(batch.run(to_first=True), None)
