"""Trees as they are asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle_jax.checks import is_number, is_whole
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, SureChain, TreePolicy


def asked_tree(tree: Any) -> TreePolicy | None:
    """The tree that was asked for: "eagle1", (nodes, depth, top_k), the same with a beam, (nodes, least), a list of
    parents, or a `TreePolicy`.

    None for "auto" and "published", which every method has its own for.
    """
    if isinstance(tree, TreePolicy):
        return tree
    if tree_is(tree, "published") or tree_is(tree, "auto"):
        return None
    if tree_is(tree, "eagle1"):
        return EAGLE1_TREE
    listed = tree.tolist() if isinstance(tree, np.ndarray) else tree
    if isinstance(listed, Sequence) and listed and all(is_whole(number) for number in listed):
        numbers = tuple(int(number) for number in listed)
        if numbers[0] == -1:
            return StaticTree(numbers)
        if len(numbers) in (3, 4):
            return DynamicTree(*numbers)
    if isinstance(listed, Sequence) and len(listed) == 2 and is_whole(listed[0]):
        nodes, least = listed
        if is_number(least) and (least == 0 or not is_whole(least)):
            return SureChain(int(nodes), float(least))
    raise ValueError(
        f'tree={tree!r} is not a tree; expected "auto", "published", "eagle1", (nodes, depth, top_k) such as '
        "(60, 7, 10), (nodes, depth, top_k, beam), (nodes, least) of a chain such as (6, 0.8), the parents of its "
        "nodes such as [-1, 0, 0, 1], or a TreePolicy"
    )


def tree_is(tree: Any, word: str) -> bool:
    return isinstance(tree, str) and tree == word
