"""The best nodes of all trees: against a slow search, each with its ancestors, and what cannot be shared."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.drafters.shared import Shared
from eagle_jax.loop.budget import within


def trees(rng: np.random.Generator, batch: int, nodes: int, ties: bool) -> Tree:
    """Random trees whose scores fall along each path, some nodes invalid."""
    parent, scores, valid = np.full((batch, nodes), -1), np.zeros((batch, nodes)), np.ones((batch, nodes), bool)
    for row in range(batch):
        for node in range(1, nodes):
            above = parent[row, node] = rng.integers(0, node)
            scores[row, node] = scores[row, above] - (rng.integers(0, 2) if ties else rng.random())
            valid[row, node] = valid[row, above] and rng.random() < 0.8
    tokens = rng.integers(0, 50, parent.shape)
    arrays = (jnp.asarray(tokens, jnp.int32), jnp.asarray(parent, jnp.int32), jnp.asarray(valid))
    return Tree(*arrays, scores=jnp.asarray(scores, jnp.float32))


def slowly(tree: Tree, budget: int, done: np.ndarray) -> np.ndarray:
    """One node after the other: roots first, then the best of those whose parent is kept."""
    scores, parent, valid = (np.asarray(part) for part in (tree.scores, tree.parent, tree.valid))
    kept = np.zeros_like(valid)
    kept[~done, 0] = True
    while kept.sum() < budget:
        free = [
            (-scores[row, node], row, node)
            for row, node in zip(*np.nonzero(valid & ~kept), strict=True)
            if not done[row] and kept[row, parent[row, node]]
        ]
        if not free:
            break
        _, row, node = min(free)
        kept[row, node] = True
    return kept


@pytest.mark.parametrize("budget", [4, 9, 17, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_the_best_nodes_of_all_are_kept(budget, ties):
    rng = np.random.default_rng(budget)
    for _ in range(20):
        tree, done = trees(rng, 4, 8, ties), rng.random(4) < 0.3
        found, expected = np.asarray(within(tree, budget, jnp.asarray(done)).valid), slowly(tree, budget, done)
        scores, parent = np.asarray(tree.scores), np.asarray(tree.parent)
        if not ties:
            np.testing.assert_array_equal(found, expected)
        # of equal nodes any may be kept
        np.testing.assert_allclose(np.sort(scores[found]), np.sort(scores[expected]))
        rows, nodes = np.nonzero(found)
        assert all(node == 0 or found[row, parent[row, node]] for row, node in zip(rows, nodes, strict=True))
        assert not found[done].any() and found[~done, 0].all()


def test_without_scores_what_comes_earlier_counts_for_more():
    tree = trees(np.random.default_rng(0), 3, 6, False)
    tree = Tree(tree.tokens, tree.parent, jnp.ones_like(tree.valid))
    kept = np.asarray(within(tree, 7, jnp.zeros(3, bool)).valid)
    assert kept.sum(axis=1).tolist() == [3, 2, 2] and kept[:, :2].all()


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="3 nodes for the trees of 4 requests"):
        within(trees(np.random.default_rng(0), 4, 3, False), 3, jnp.zeros(4, bool))
    with pytest.raises(ValueError, match="Lookahead needs"):
        Shared(Lookahead(window=3, ngram=3, guesses=2), 8)
