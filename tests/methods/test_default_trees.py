"""Trees that are cut down to fit."""

import dataclasses

import pytest

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.methods.default_trees import shrink_to


@pytest.mark.parametrize("tree", [DynamicTree(60, 7, 10), DynamicTree(4, 2, 1), DynamicTree(64, 3, 10)], ids=str)
def test_trees_shrink_evenly(tree):
    sizes = [dataclasses.astuple(shrink_to(tree, most))[:1] for most in range(2, 70)]
    assert sizes == sorted(sizes), "with more room comes no smaller tree"
    for most in range(2, 70):
        smaller = shrink_to(tree, most)
        assert smaller.nodes <= most and smaller.depth <= tree.depth and smaller.top_k <= tree.top_k
    assert shrink_to(tree, 64) == tree and shrink_to(tree, 2) == DynamicTree(2, 0, 1)


def test_the_likeliest_nodes_stay_the_likeliest():
    """With all of their depth, for they choose it."""
    tree = DynamicTree(128, 14, 7, 127)
    for most in range(2, 128):
        smaller = shrink_to(tree, most)
        assert smaller.nodes == most and smaller.beam >= smaller.nodes - 1 and smaller.top_k == 7
        assert smaller.depth == min(15, most - 1)
