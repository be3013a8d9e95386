"""Which drafter a batch has, by how many of its rows have a request."""

import dataclasses

from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.models.lm import LM
from eagle_jax.tuning.methods import Choice
from eagle_jax.tuning.sizes import rows_for

UNREAD = 32  # steps of plain decoding that a drafter reads at a time, at least
DOUBLING = 8  # rows up to which sizes double; above they grow fourfold, for fewer programs


@dataclasses.dataclass(frozen=True)
class ByLoad:
    """Drafters that remember the same and differ in their trees, by the rows that take part in a step.

    Attributes:
        entries: (rows, drafter), by ascending rows; the last one is for the whole batch.
    """

    entries: tuple[tuple[int, Drafter], ...]

    @property
    def deepest(self) -> Drafter:
        """The one whose trees are deepest."""
        return max((drafter for _, drafter in self.entries), key=lambda one: one.shape.depth)

    @property
    def most_rows(self) -> int:
        """Most rows that are written to a cache at a time."""
        drafters = [drafter for _, drafter in self.entries]
        unread = [drafter.room for drafter in drafters if isinstance(drafter, Ready)]
        return max(*unread, *(drafter.shape.depth + 1 for drafter in drafters), 1)

    def __str__(self) -> str:
        """What is drafted, in words."""
        trees: list[tuple[int, int]] = []  # nodes, and the most rows that have trees of that size
        for rows, drafter in self.entries:
            nodes = drafter.shape.nodes
            trees = [*(trees[:-1] if trees and trees[-1][0] == nodes else trees), (nodes, rows)]
        if len(trees) == 1:
            return "no drafting" if trees[0][0] == 1 else f"trees of {trees[0][0]} nodes"
        parts = [f"{f'{nodes} nodes' if nodes > 1 else 'none'} for {rows}" for nodes, rows in trees]
        return f"trees by answers at a time ({', '.join(parts)})"

    def for_rows(self, running: int) -> tuple[int, Drafter]:
        """Rows of the smallest step that so many take part in, and its drafter."""
        return next((entry for entry in self.entries if entry[0] >= running), self.entries[-1])


def by_load(choice: Choice, rows: int, steps: int, slots: int | None = None, *, always: bool = False) -> ByLoad:
    """The drafters that were chosen for a batch of `rows` rows and for fewer of them.

    Where a tree pays for few rows and none for many, the many decode plainly and the drafter reads along. All rows take
    part in every step where they lie in fixed places, over several devices, and with a target of a caller's own, which
    need not know of rows of a cache.

    Args:
        steps: between two polls.
        slots: of the batch's caches, if known.
        always: all rows take part in every step in any case.
    """
    most = rows_for(choice.model, rows)
    some_rows = not always and choice.model.sharding is None and isinstance(choice.model.target, LM)
    sizes = _sizes(most) if some_rows else [most]
    drafters = [choice.for_batch(size, slots) for size in sizes]
    drafting = [drafter for drafter in drafters if not isinstance(drafter, Plain)]
    if len(drafting) not in (0, len(drafters)):
        room = max(UNREAD, steps)
        drafters = [Paused(drafting[0], room) if isinstance(one, Plain) else Ready(one, room) for one in drafters]
    return ByLoad(tuple(zip(sizes, drafters, strict=True)))


def _sizes(most: int) -> list[int]:
    """Numbers of rows that steps are compiled for."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(most, sizes[-1] * (2 if sizes[-1] < DOUBLING else 4)))
    return sizes
