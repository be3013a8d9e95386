"""Measures the costs of the parts of a step: verification of trees of several sizes, and levels of the draft."""

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
    """The trees that are measured.

    Attributes:
        largest: the largest tree, which is drafted at each token of the texts.
        nodes: numbers of nodes for which verification is timed.
        widths: widths for which draft levels are timed; other widths are interpolated.
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
    """Returns the grid for this device (smaller on CPUs), within the depth and width that the head can draft."""
    grid = CPU if jax.default_backend() == "cpu" else ACCELERATOR
    depth, width = grid.largest.depth, grid.largest.top_k
    if model.head is not None:
        depth, width = model.head.num_drafted or depth, min(width, model.head.max_children or width)
    steps = min(grid.largest.depth_steps, depth - 1)
    nodes = min(grid.largest.nodes, 1 + width + steps * width**2)
    return Grid(
        DynamicTree(nodes, steps, width),
        tuple(size for size in grid.nodes if size < nodes) + (nodes,),
        tuple(w for w in grid.widths if w < width) + (width,),
    )


def measure(start: Start, name: str, grid: Grid, advance: Callable[[], None]) -> Costs:
    """Measures the cost of the parts of a step."""
    max_steps = min(3, grid.largest.depth_steps)
    drafters: dict[Any, Drafter] = {}
    for nodes in grid.nodes:
        drafters["verify", nodes] = VerifyOnly(TreeShape(nodes=nodes, depth=min(nodes - 1, grid.largest.depth)))
    for width, steps in itertools.product(grid.widths, {0, max_steps}):
        drafters[steps, width] = DraftOnly(drafter_with(start.model, name, DynamicTree(width + 1, steps, width)))
    seconds = seconds_per_step(start, drafters, advance)

    def drafting(steps: int, width: int) -> float:
        return max(seconds[steps, width] - seconds["verify", 1], 0.0)

    def level(width: int) -> float:
        return max(drafting(max_steps, width) - drafting(0, width), 0.0) / max(max_steps, 1)

    return Costs(
        verify_steps=tuple((nodes, seconds["verify", nodes]) for nodes in grid.nodes),
        begin=tuple((width, drafting(0, width)) for width in grid.widths),
        level=tuple((width, level(width)) for width in grid.widths),
    )


def drafter_with(model: Model, name: str, tree: DynamicTree) -> Drafter:
    return METHODS[name].make(model, tree, False)
