"""Trees as they are asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle_jax.checks import is_number, is_whole_number
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, TreePolicy


def asked_tree(tree: Any) -> TreePolicy | None:
    """Returns the tree that was asked for: "eagle1", (nodes, depth, top_k), the same with a beam (a whole number) or
    with the probability that paths end below (none), (nodes, least) of a chain, a list of parents, or a `TreePolicy`.

    None for "auto" and "published", which every method has its own for.
    """
    if isinstance(tree, TreePolicy):
        return tree
    if tree_is(tree, "published") or tree_is(tree, "auto"):
        return None
    if tree_is(tree, "eagle1"):
        return EAGLE1_TREE
    listed = tree.tolist() if isinstance(tree, np.ndarray) else tree
    if isinstance(listed, Sequence) and listed and all(is_whole_number(number) for number in listed):
        numbers = tuple(int(number) for number in listed)
        if numbers[0] == -1:
            return StaticTree(numbers)
        if len(numbers) in (3, 4):
            return DynamicTree(*numbers)
    if (
        isinstance(listed, Sequence)
        and len(listed) in (2, 4)
        and all(is_whole_number(number) for number in listed[:-1])
    ):
        sizes, min_probability = [int(number) for number in listed[:-1]], listed[-1]
        if is_number(min_probability) and (min_probability == 0 or not is_whole_number(min_probability)):
            nodes, depth_steps, top_k = sizes if len(sizes) == 3 else (sizes[0], sizes[0] - 2, 1)
            return DynamicTree(nodes, depth_steps, top_k, min_probability=float(min_probability))
    raise ValueError(
        f'tree={tree!r} is not a tree; expected "auto", "published", "eagle1", (nodes, depth, top_k) such as '
        "(60, 7, 10), (nodes, depth, top_k, beam), (nodes, depth, top_k, least) such as (8, 3, 2, 0.03), "
        "(nodes, least) of a chain, its nodes' parents such as [-1, 0, 0, 1], or a TreePolicy"
    )


def tree_is(tree: Any, word: str) -> bool:
    return isinstance(tree, str) and tree == word
