"""Estimates the speed of decoding with draft trees from measured costs and acceptance.

tokens per second = E[tokens per step] / (verifying the tree + starting to draft + levels * one level)
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
        verify_steps: a step without drafting, by the number of nodes that the target reads; 1 is plain decoding.
        begin: drafting without expansions, by the width of the tree: observing committed tokens, and the first level.
        level: each expansion, by its width.
    """

    verify_steps: Times
    begin: Times
    level: Times

    @property
    def plain(self) -> float:
        """Seconds of a step of plain decoding."""
        return between(self.verify_steps, 1)

    def step(self, tree: DynamicTree) -> float:
        """Returns the seconds of a step with this tree; infinite beyond the measured sizes."""
        drafting = between(self.begin, tree.top_k) + tree.depth_steps * between(self.level, tree.top_k)
        return between(self.verify_steps, tree.nodes) + drafting


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated length and seconds of a step with a tree (None: plain decoding), for one row of a batch.

    Attributes:
        length: mean number of tokens that a step commits.
        seconds: seconds of a step.
    """

    tree: DynamicTree | None
    length: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.length / self.seconds


def between(times: Times, size: int) -> float:
    """Interpolates the seconds at `size` linearly; infinite beyond the largest measured size.

    Measured values are made non-decreasing first, since more work does not take less time.
    """
    sizes = [size for size, _ in times]
    seconds = list(itertools.accumulate((seconds for _, seconds in times), max))
    i = bisect.bisect_left(sizes, size)
    if i == len(sizes):
        return math.inf
    if i == 0 or sizes[i] == size:
        return seconds[i]
    fraction = (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
    return seconds[i - 1] + fraction * (seconds[i] - seconds[i - 1])


def ranked(costs: Costs, lengths: Mapping[DynamicTree, float]) -> list[Estimate]:
    """Returns estimates for plain decoding and every tree, the fastest first; ties go to the smaller tree.

    Args:
        lengths: mean number of tokens that a step with each tree commits.
    """
    plain = Estimate(None, 1.0, costs.plain)
    trees = [Estimate(tree, length, costs.step(tree)) for tree, length in lengths.items()]
    return sorted([plain, *trees], key=lambda e: (-e.tokens_per_second, e.tree.nodes if e.tree else 1))


def candidates(largest: DynamicTree, widths: Sequence[int]) -> Iterator[DynamicTree]:
    """Yields trees to choose from, no larger than `largest`, with frontiers of these widths."""
    for width, steps in itertools.product(widths, range(largest.depth_steps + 1)):
        for nodes in NODES:
            # at least a node for each depth, and no more nodes than the expansions find
            min_nodes, max_nodes = steps + 2, 1 + width + steps * width**2
            if width <= largest.top_k and min_nodes <= nodes <= min(max_nodes, largest.nodes):
                yield DynamicTree(nodes, steps, width)
