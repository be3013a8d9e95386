"""Trees and chains that end where their paths are unlikely."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_policy import HASHES, assert_well_formed, distinct, follow, grow, paths, reference, rounded_up, tied

from eagle_jax.decoding.policy import DynamicTree, TreePolicy
from eagle_jax.decoding.tree import Tree


def unequal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """One token is likely after some paths, all are alike after others."""
    return np.log(rng.dirichlet(np.full(shape[-1], 0.3), shape[:-1]))


def chained(policy: TreePolicy, tables: np.ndarray) -> tuple[Tree, int]:
    """The chain over a table drafter, and how often it ran; it does not for the last node."""
    runs: list[int] = []

    def extend(above: jax.Array, level: int, tokens: jax.Array, parent_row: jax.Array):
        jax.debug.callback(runs.append, level)
        hashed = follow(above, tokens)
        return jnp.take_along_axis(tables, hashed[:, :, None], axis=1), hashed

    tables = jnp.asarray(tables, jnp.float32)
    start = jnp.zeros((len(tables), 1), jnp.int32)
    tree = jax.jit(lambda: policy.grow(jnp.arange(len(tables)), tables[:, 0], extend, start))()
    jax.effects_barrier()
    return tree, len(runs)


def test_a_chain_that_is_sure_of_nothing_is_the_greedy_one():
    tables = np.log(np.random.default_rng(0).dirichlet(np.ones(7), (3, HASHES)))
    chain, asked = chained(DynamicTree.chain(6, 0.0), tables)
    greedy = grow(DynamicTree(6, 4, 1), tables)[0]
    np.testing.assert_array_equal(chain.tokens, greedy.tokens)
    np.testing.assert_array_equal(chain.parent, greedy.parent)
    assert chain.valid.all() and asked == 4


SURE = [
    (DynamicTree(8, 5, 2, min_probability=0.1), 6),
    (DynamicTree(8, 2, 3, min_probability=0.3), 6),
    (DynamicTree(12, 3, 4, 2, min_probability=0.1), 6),
    (DynamicTree.chain(6, 0.05), 5),
    (DynamicTree.chain(6, 0.5), 5),
]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [unequal, distinct, tied, rounded_up])
@pytest.mark.parametrize(("policy", "vocab"), SURE)
def test_a_tree_ends_where_its_paths_are_unlikely(policy: DynamicTree, vocab: int, kind: Callable[..., np.ndarray]):
    tables = kind(np.random.default_rng(vocab), (40, HASHES, vocab)).astype(np.float32)
    tree, _ = grow(policy, tables)
    for row, table in enumerate(tables):
        expected = reference(policy, table)
        got = [path for path, valid in zip(paths(tree, row), tree.valid[row].tolist(), strict=True) if valid]
        assert got[1:] == [path for path, score in expected if score > -np.inf]
    assert_well_formed(tree, policy)
    if kind is unequal:
        assert 1 < tree.valid.sum(1).mean() < policy.nodes, "some are large, some small"


def test_what_nobody_is_sure_of_is_not_asked_for():
    unsure = np.full((2, HASHES, 4), np.log(0.25))  # each guess
    chain, asked = chained(DynamicTree.chain(5, 0.5), unsure)
    assert chain.valid.tolist() == [[True, False, False, False, False]] * 2 and asked == 0


@pytest.mark.parametrize("arguments, sentence", [((1, 0.5), "1 nodes"), ((4, 1.0), "1.0"), ((4, -0.1), "-0.1")])
def test_impossible_chains_are_refused(arguments: tuple[int, float], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        DynamicTree.chain(*arguments)
