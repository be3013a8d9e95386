"""Costs of the parts of a step: forward passes over trees of several sizes, and levels of the draft."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.timing import DraftOnly, VerifyOnly
from eagle_jax.inspection.start import Start, seconds_per_step
from eagle_jax.loading.model import Model
from eagle_jax.methods.registry import METHODS
from eagle_jax.tuning.tree_costs import Costs


@dataclasses.dataclass(frozen=True)
class Grid:
    """The tree sizes to measure on a device.

    Attributes:
        largest: the tree that is drafted everywhere on the prompts, and that no choice exceeds.
        nodes: nodes of the trees whose verification is timed.
        widths: of draft levels that are timed; what lies between is taken from straight lines.
    """

    largest: DynamicTree
    nodes: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def all_widths(self) -> list[int]:
        return [width for width in (1, 2, 3, 4, 6, 8, 10) if width <= max(self.widths)]


ACCELERATOR = Grid(DynamicTree(60, 7, 10), (1, 4, 8, 16, 32, 60), (1, 4, 10))


CPU = Grid(DynamicTree(32, 6, 4), (1, 2, 4, 8, 16, 32), (1, 2, 4))


def grid_for(model: Model) -> Grid:
    """Returns the trees to measure on this device, within the heads' depth and width; small trees on a CPU."""
    grid = CPU if jax.default_backend() == "cpu" else ACCELERATOR
    deepest, width = grid.largest.depth, grid.largest.top_k
    if model.head is not None:
        deepest, width = model.head.num_drafted or deepest, min(width, model.head.max_children or width)
    steps = min(grid.largest.depth_steps, deepest - 1)
    nodes = min(grid.largest.nodes, 1 + width + steps * width**2)
    return Grid(
        DynamicTree(nodes, steps, width),
        tuple(size for size in grid.nodes if size < nodes) + (nodes,),
        tuple(each for each in grid.widths if each < width) + (width,),
    )


def measure(start: Start, name: str, grid: Grid, advance: Callable[[], None]) -> Costs:
    """Measures the cost of the parts of a step."""
    deep = min(3, grid.largest.depth_steps)
    drafters: dict[Any, Drafter] = {}
    for nodes in grid.nodes:
        drafters["verify", nodes] = VerifyOnly(TreeShape(nodes=nodes, depth=min(nodes - 1, grid.largest.depth)))
    for width, steps in itertools.product(grid.widths, {0, deep}):
        drafters[steps, width] = DraftOnly(drafter_with(start.model, name, DynamicTree(width + 1, steps, width)))
    seconds = seconds_per_step(start, drafters, advance)

    def drafting(steps: int, width: int) -> float:
        return max(seconds[steps, width] - seconds["verify", 1], 0.0)

    def level(width: int) -> float:
        return max(drafting(deep, width) - drafting(0, width), 0.0) / max(deep, 1)

    return Costs(
        verify_steps=tuple((nodes, seconds["verify", nodes]) for nodes in grid.nodes),
        begin=tuple((width, drafting(0, width)) for width in grid.widths),
        level=tuple((width, level(width)) for width in grid.widths),
    )


def drafter_with(model: Model, name: str, tree: DynamicTree) -> Drafter:
    return METHODS[name].make(model, tree, False)
