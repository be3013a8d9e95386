"""Chooses the drafter of a batch by the number of its rows that have a request."""

import dataclasses

from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.methods.choice import Choice
from eagle_jax.models.lm import LM
from eagle_jax.scheduling.sizes import padded_batch_size

MIN_BACKLOG_STEPS = 32  # steps of plain decoding that a drafter can catch up with at a time
MAX_DOUBLED_SIZE = 8  # sizes double up to this one; larger ones grow fourfold, for fewer programs


@dataclasses.dataclass(frozen=True)
class ByLoad:
    """Drafters that remember the same and differ in their trees, by the rows that take part in a step.

    Attributes:
        entries: (rows, drafter), by ascending rows; the last ones are for the whole batch. Where several are for the
            same rows, the first is expected to be fastest.
    """

    entries: tuple[tuple[int, Drafter], ...]

    @property
    def deepest(self) -> Drafter:
        """The drafter with the deepest trees."""
        return max((drafter for _, drafter in self.entries), key=lambda drafter: drafter.shape.depth)

    @property
    def max_rows(self) -> int:
        """Maximum number of rows that are written to a cache at a time."""
        drafters = [drafter for _, drafter in self.entries]
        unread = [drafter.room for drafter in drafters if isinstance(drafter, Ready)]
        return max(*unread, *(drafter.shape.depth + 1 for drafter in drafters), 1)

    def __str__(self) -> str:
        """Returns a description of the drafts."""
        trees: list[tuple[int, int]] = []  # nodes, and the maximum of rows with trees of that size
        for rows, drafter in sorted(self._expected.items()):
            nodes = drafter.shape.nodes
            trees = [*(trees[:-1] if trees and trees[-1][0] == nodes else trees), (nodes, rows)]
        changes = " at first" if len(self._expected) < len(self.entries) else ""
        if len(trees) == 1:
            return f"{'no drafting' if trees[0][0] == 1 else f'trees of {trees[0][0]} nodes'}{changes}"
        parts = [f"{f'{nodes} nodes' if nodes > 1 else 'none'} for {rows}" for nodes, rows in trees]
        return f"trees by answers at a time ({', '.join(parts)}{changes})"

    def for_rows(self, running: int) -> tuple[int, Drafter]:
        """Returns `rows_for(running)`, and the drafter that is expected to be fastest for this number of rows."""
        rows = self.rows_for(running)
        return rows, self._expected[rows]

    def rows_for(self, running: int) -> int:
        """Returns the number of rows of the smallest step that holds this number of requests."""
        return next((rows for rows, _ in self.entries if rows >= running), self.entries[-1][0])

    @property
    def _expected(self) -> dict[int, Drafter]:
        """The first drafter for each number of rows."""
        return dict(reversed(self.entries))


def by_load(choice: Choice, rows: int, steps: int, slots: int | None = None, *, always: bool = False) -> ByLoad:
    """Returns the drafters that were chosen for a batch of `rows` rows and for fewer of them.

    Where a tree pays for few rows and none for many, the many decode plainly and the drafter reads along. With
    `tree="auto"` there is plain decoding besides each tree, and a small tree for few rows on a CPU. All rows take
    part in every step where they lie in fixed places, over several devices, and with a target of a caller's own, which
    need not know of rows of a cache.

    Args:
        steps: steps between two polls.
        slots: slots of the batch's caches, if known.
        always: all rows take part in every step in any case.
    """
    max_rows = padded_batch_size(choice.model, rows)
    some_rows = not always and choice.model.sharding is None and isinstance(choice.model.target, LM)
    sizes = _sizes(max_rows) if some_rows else [max_rows]
    entries = [(size, drafter) for size in sizes for drafter in _candidates(choice, size, slots, some_rows)]
    drafting = [drafter for _, drafter in entries if not isinstance(drafter, Plain)]
    if len(drafting) not in (0, len(entries)):
        room, first = max(MIN_BACKLOG_STEPS, steps), drafting[0]
        entries = [(size, Paused(first, room) if isinstance(d, Plain) else Ready(d, room)) for size, d in entries]
    return ByLoad(tuple(entries))


def _candidates(choice: Choice, rows: int, slots: int | None, some_rows: bool) -> list[Drafter]:
    """Returns the drafter that is expected to be fastest for so many rows, and others that may turn out to be."""
    expected = choice.for_batch(rows, slots)
    return [expected, *choice.alternatives(rows, expected)] if some_rows else [expected]


def _sizes(max_rows: int) -> list[int]:
    """Returns numbers of rows that steps are compiled for."""
    sizes = [1]
    while sizes[-1] < max_rows:
        sizes.append(min(max_rows, sizes[-1] * (2 if sizes[-1] < MAX_DOUBLED_SIZE else 4)))
    return sizes
