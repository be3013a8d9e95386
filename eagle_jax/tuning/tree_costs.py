"""Costs of draft trees: the tokens that a step commits against the seconds that it takes.

    tokens per second = E[tokens a step] / (step that verifies the tree + beginning to draft + levels * one level)

Everything here is arithmetic on numbers that were measured elsewhere. Where every tree loses, plain decoding is best.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from eagle_jax.decoding.policy import DynamicTree

# (size, seconds), by ascending size
Times = tuple[tuple[int, float], ...]

NODES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60, 80, 100, 128)


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a step, for one model on one device at one batch size.

    Attributes:
        verify_steps: a step that drafts nothing, by the nodes that the target reads in it; 1 is plain decoding.
        begin: what drafting adds to a step, by the width of the tree, when nothing is expanded: taking in what was
            committed, and the first level.
        level: every expansion, by its width.
    """

    verify_steps: Times
    begin: Times
    level: Times

    @property
    def plain(self) -> float:
        """A step of plain decoding."""
        return between(self.verify_steps, 1)

    def step(self, tree: DynamicTree) -> float:
        """Returns the seconds of a step with this tree; infinite for one beyond what was measured."""
        drafting = between(self.begin, tree.top_k) + tree.depth_steps * between(self.level, tree.top_k)
        return between(self.verify_steps, tree.nodes) + drafting


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The expected speed of a tree (None: plain decoding) for a batch size.

    Attributes:
        length: tokens that a step commits.
        seconds: seconds of a step.
    """

    tree: DynamicTree | None
    length: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.length / self.seconds


def between(times: Times, size: int) -> float:
    """Returns seconds at `size`, on straight lines between those that were measured; infinite beyond the largest.

    More work does not take less time: what was measured below an earlier value counts as that.
    """
    sizes = [at for at, _ in times]
    rising = list(itertools.accumulate((seconds for _, seconds in times), max))
    place = bisect.bisect_left(sizes, size)
    if place == len(sizes):
        return math.inf
    if place == 0 or sizes[place] == size:
        return rising[place]
    share = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
    return rising[place - 1] + share * (rising[place] - rising[place - 1])


def ranked(costs: Costs, lengths: Mapping[DynamicTree, float]) -> list[Estimate]:
    """Returns plain decoding and every tree, the fastest first; of equally fast ones the smaller tree.

    Args:
        lengths: tokens that a step commits with each tree.
    """
    plain = Estimate(None, 1.0, costs.plain)
    trees = [Estimate(tree, length, costs.step(tree)) for tree, length in lengths.items()]
    return sorted(
        [plain, *trees], key=lambda estimate: (-estimate.tokens_per_second, estimate.tree.nodes if estimate.tree else 1)
    )


def candidates(largest: DynamicTree, widths: Sequence[int]) -> Iterator[DynamicTree]:
    """Yields trees to choose from that are no larger than one in any way, with frontiers of these widths."""
    for width, steps in itertools.product(widths, range(largest.depth_steps + 1)):
        for nodes in NODES:
            # as many nodes as it is deep, no more than it finds, and more than its first level where it expands
            deep, reached = steps + 2, 1 + width + steps * width**2
            if width <= largest.top_k and deep <= nodes <= min(reached, largest.nodes):
                yield DynamicTree(nodes, steps, width)
