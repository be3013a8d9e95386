"""What smaller trees would have done, read off large ones, is what the policy itself grows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import depth_below
from eagle_jax.tuning.replay import DraftedTree, Text, by_rank, lengths

#   0 --- 1 --- 3 --- 5       best first: 1 is likelier than 2, 2 than 3, ...
#     \     \ 4
#      2 --- 6
TREE = DraftedTree(tokens=[9, 1, 2, 3, 4, 5, 6], parents=[-1, 0, 0, 1, 1, 3, 2])


@pytest.mark.parametrize(
    "following, steps, width, needed",
    [
        ([1, 3, 5, 7], 2, 2, [2, 4, 6]),
        ([1, 3, 5, 7], 1, 2, [2, 4]),
        ([1, 4, 5], 1, 2, [2, 5]),
        ([1, 4], 1, 1, [2]),  # 4 is a second child
        ([2, 6], 1, 2, [3, 6]),  # with one expansion 5 is not found, so 6 is the sixth
        ([2, 6], 2, 2, [3, 7]),
        ([2, 6], 2, 1, []),
        ([8], 2, 2, []),
        ([], 2, 2, []),
    ],
)
def test_nodes_that_a_path_needs(following, steps, width, needed):
    assert TREE.nodes_needed(following, steps, width) == needed


def test_only_the_best_of_a_level_are_expanded():
    tree = DraftedTree(tokens=[0, 1, 2, 3, 4, 5, 6, 7], parents=[-1, 0, 0, 1, 2, 1, 3, 5])
    assert tree.nodes_needed([1, 5, 7], 2, 2) == [2, 6], "5 comes third of its level: nothing is below it"
    assert tree.nodes_needed([1, 3, 6], 2, 2) == [2, 4, 7]


def grown(tree: DynamicTree) -> tuple[np.ndarray, ...]:
    """A tree over scores that depend on the path alone."""

    def scores(seed: jax.Array) -> jax.Array:
        at = jnp.arange(7, dtype=jnp.float32)[None, None]
        return jax.nn.log_softmax(3 * jnp.sin(seed[..., None] * 12.9 + at * (78.2 + seed[..., None])), axis=-1)

    def extend(carry, level, tokens, parent_row):
        path = jnp.take_along_axis(carry, parent_row, axis=1) * 1.7 + tokens.astype(jnp.float32) + 0.1
        return scores(path), path

    roots = jnp.arange(40, dtype=jnp.int32) % 7
    path = (jnp.arange(40, dtype=jnp.float32) * 0.37)[:, None]
    result = jax.jit(lambda: tree.grow(roots, scores(path)[:, 0], extend, path))()
    return tuple(np.asarray(part) for part in (result.tokens, result.parent, depth_below(result.ancestors)))


def test_best_first_is_the_same_tree_in_another_order():
    found, sorted_ = (grown(DynamicTree(14, 3, 3, best_first=first)) for first in (True, False))
    for row in range(40):
        paths = [
            {path_of(tokens[row], parents[row], node) for node in range(14)} for tokens, parents, _ in (found, sorted_)
        ]
        assert paths[0] == paths[1] and len(paths[0]) == 14
        assert all(parent < node for node, parent in enumerate(found[1][row]))


def path_of(tokens: np.ndarray, parents: np.ndarray, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*path_of(tokens, parents, parents[node]), int(tokens[node]))


@pytest.mark.matrix
@pytest.mark.parametrize("small", [DynamicTree(4, 2, 1), DynamicTree(6, 3, 2), DynamicTree(9, 1, 3)], ids=repr)
def test_smaller_trees_are_read_off_the_large_one(small):
    tokens, parents, _ = grown(DynamicTree(40, 3, 4, best_first=True))
    own_tokens, own_parents, depth = grown(small)
    for row in range(40):
        large = DraftedTree(tokens[row].tolist(), parents[row].tolist())
        own = {path_of(own_tokens[row], own_parents[row], node) for node in range(1, small.nodes)}
        for node in range(1, 40):
            path = path_of(tokens[row], parents[row], node)
            needed = large.nodes_needed(path, small.depth_steps, small.top_k)
            read = len(needed) == len(path) and needed[-1] <= small.nodes
            assert read == (path in own), (row, path)


def test_lengths_over_a_whole_text():
    right = [DraftedTree([t, t + 1, t + 2], [-1, 0, 1]) for t in range(6)]
    text = Text(list(range(9)), right)
    found = lengths([text], [DynamicTree(2, 0, 1), DynamicTree(3, 1, 1)])
    assert found == {DynamicTree(2, 0, 1): 2.0, DynamicTree(3, 1, 1): 3.0}
    wrong = Text([0, 5, 6, 7, 8], [DraftedTree([0, 1, 2], [-1, 0, 1])] * 3)
    assert set(lengths([wrong], [DynamicTree(3, 1, 1)]).values()) == {1.0}


def test_how_often_each_rank_is_right():
    text = Text([0, 1, 2, 9], [DraftedTree([0, 1, 7, 2], [-1, 0, 0, 1]), DraftedTree([1, 8, 2], [-1, 0, 0])])
    assert by_rank([text], 2, 2) == [[0.5, 0.5], [0.5, 0.0]]
