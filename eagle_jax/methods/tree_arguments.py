"""The argument `tree` of `generate` as a tree policy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle_jax.checks import is_number, is_whole_number
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, TreePolicy


def tree_policy(tree: Any) -> TreePolicy | None:
    """Returns the policy of a tree; None for "auto" and "published", which depend on the method.

    A tree is "eagle1", (nodes, depth, top_k), the same with a beam (a whole number) or a minimum path probability (a
    float), (nodes, min_probability) of a chain, a list of parents, or a `TreePolicy`.
    """
    if isinstance(tree, TreePolicy):
        return tree
    if tree_is(tree, "published") or tree_is(tree, "auto"):
        return None
    if tree_is(tree, "eagle1"):
        return EAGLE1_TREE
    values = tree.tolist() if isinstance(tree, np.ndarray) else tree
    if isinstance(values, Sequence) and values and all(is_whole_number(number) for number in values):
        numbers = tuple(int(number) for number in values)
        if numbers[0] == -1:
            return StaticTree(numbers)
        if len(numbers) in (3, 4):
            return DynamicTree(*numbers)
    if (
        isinstance(values, Sequence)
        and len(values) in (2, 4)
        and all(is_whole_number(number) for number in values[:-1])
    ):
        sizes, min_probability = [int(number) for number in values[:-1]], values[-1]
        if is_number(min_probability) and (min_probability == 0 or not is_whole_number(min_probability)):
            nodes, depth_steps, top_k = sizes if len(sizes) == 3 else (sizes[0], sizes[0] - 2, 1)
            return DynamicTree(nodes, depth_steps, top_k, min_probability=float(min_probability))
    raise ValueError(
        f'tree={tree!r} is not a tree; expected "auto", "published", "eagle1", (nodes, depth, top_k) such as '
        "(60, 7, 10), the same with a beam or with a minimum probability such as (8, 3, 2, 0.03), (nodes, "
        "min_probability) of a chain, the nodes' parents such as [-1, 0, 0, 1], or a TreePolicy"
    )


def tree_is(tree: Any, word: str) -> bool:
    return isinstance(tree, str) and tree == word
