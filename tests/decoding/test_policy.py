"""Tree policies against slow, obvious references, and the sentences that refuse what is not a tree."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_reference
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_jax.decoding.policy import EAGLE1_TREE, NO_TREE, DynamicTree, StaticTree, TreePolicy
from eagle_jax.decoding.policy.static import check
from eagle_jax.decoding.tree import Tree

HASHES = 61  # a drafter here is a table of scores [b HASHES v], looked up by a hash of the whole path
Path = tuple[int, ...]


def follow(hashed: jax.Array, tokens: jax.Array) -> jax.Array:
    return (hashed * 31 + tokens + 1) % HASHES


def look_up(table: np.ndarray, path: Path) -> np.ndarray:
    """Usable scores after a path, for the references: one row's table, without nan and nothing above 0."""
    hashed = 0
    for token in path:
        hashed = (hashed * 31 + token + 1) % HASHES
    scores = table[hashed]
    return np.where(np.isnan(scores), -np.inf, np.minimum(scores, 0)).astype(np.float32)


def grow(policy: TreePolicy, tables: np.ndarray) -> tuple[Tree, list[int]]:
    """The tree over a table drafter, and the rows of each call of `extend`."""
    calls: list[int] = []

    @jax.jit
    def run(tables: jax.Array) -> Tree:
        def extend(above: jax.Array, level: int, tokens: jax.Array, parent_row: jax.Array):
            if level > len(calls):  # a level that may be left out is traced twice
                calls.append(tokens.shape[1])
            assert level == len(calls)
            hashed = follow(jnp.take_along_axis(above, parent_row, axis=1), tokens)
            return jnp.take_along_axis(tables, hashed[:, :, None], axis=1), hashed

        roots = jnp.arange(len(tables), dtype=jnp.int32)
        return policy.grow(roots, tables[:, 0], extend, jnp.zeros((len(tables), 1), jnp.int32))

    return run(jnp.array(tables, jnp.float32)), calls


def is_exact(policy: DynamicTree) -> bool:
    """Whether the beam is wide enough for the tree to hold the likeliest of all paths."""
    return (policy.beam or policy.top_k) >= policy.nodes - 1


def paths(tree: Tree, row: int) -> list[Path]:
    """The tokens between the root and every node, root excluded."""
    found: list[Path] = [()]
    for token, parent in zip(tree.tokens[row, 1:].tolist(), tree.parent[row, 1:].tolist(), strict=True):
        found.append((*found[parent], token))
    return found


def reference(policy: DynamicTree, table: np.ndarray) -> list[tuple[Path, np.float32]]:
    """The obvious tree over one row's table: path and score of each node but the root."""
    return tree_reference.dynamic_tree(
        policy.nodes,
        policy.depth_steps,
        policy.top_k,
        lambda path: look_up(table, path),
        beam=policy.beam,
        least=policy.min_probability,
    )


def distinct(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return np.log(rng.dirichlet(np.ones(shape[-1]), shape[:-1]))


def tied(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Few values: most comparisons are ties, of siblings or of parent and child, and some tokens are impossible."""
    return rng.choice([0.0, 0.0, -0.5, -1.0, -np.inf], shape)


def rounded_up(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Log-probabilities that exceed 0 by rounding, and numbers that are none."""
    return rng.choice([1e-3, 1e-7, 0.0, -1.0, np.nan], shape)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [distinct, tied, rounded_up])
@pytest.mark.parametrize(
    ("policy", "vocab"),
    [
        (DynamicTree(60, 7, 10), 12),
        (DynamicTree(8, 2, 3), 5),
        (DynamicTree(14, 3, 2), 4),
        (DynamicTree(15, 3, 2), 2),
        (DynamicTree(6, 5, 1), 3),
        (DynamicTree(2, 0, 1), 3),
        (DynamicTree(5, 0, 4), 4),
        (DynamicTree(40, 4, 5, 12), 9),
        (DynamicTree(12, 3, 4, 2), 5),
    ],
)
def test_dynamic_tree_is_the_obvious_reference(policy: DynamicTree, vocab: int, kind: Callable[..., np.ndarray]):
    """40 rows of one batch, each with its own scores: 840 trees in all."""
    tables = kind(np.random.default_rng(vocab), (40, HASHES, vocab)).astype(np.float32)
    tree, calls = grow(policy, tables)
    for row, table in enumerate(tables):
        expected = reference(policy, table)
        assert paths(tree, row)[1:] == [path for path, _ in expected]
        assert tree.valid[row].tolist() == [True, *(bool(score > -np.inf) for _, score in expected)]
    assert tuple(calls) == policy.frontiers
    assert_well_formed(tree, policy)


def test_the_references_meaning_of_60_7_10():
    tree = DynamicTree(60, 7, 10)
    assert (tree.nodes, tree.depth, tree.width, tree.frontiers) == (60, 8, 10, (10,) * 7)


def by_depth(kind: Callable[..., np.ndarray], depth: int, vocab: int, seed: int) -> np.ndarray:
    """Scores of 40 rows that depend on the depth of a node alone `[40, depth, v]`."""
    return kind(np.random.default_rng(seed), (40, depth, vocab)).astype(np.float32)


def of_marginals(policy: TreePolicy, scores: np.ndarray) -> Tree:
    """The tree over scores of each depth."""

    def extend(carry: None, level: int, tokens: jax.Array, parent_row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.broadcast_to(scores[:, level : level + 1], (*tokens.shape, scores.shape[2])), carry

    roots = jnp.arange(len(scores), dtype=jnp.int32)
    return jax.jit(lambda: policy.grow(roots, jnp.asarray(scores[:, 0]), extend, None))()


BEST_FIRST = [
    (DynamicTree(60, 6, 5, 59), 9),
    (DynamicTree(24, 3, 3, 1000), 4),
    (DynamicTree(9, 7, 1, 8), 3),
    (DynamicTree(30, 2, 7, 29), 7),
]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [distinct, tied, rounded_up])
@pytest.mark.parametrize(("policy", "vocab"), BEST_FIRST)
@pytest.mark.parametrize("conditional", [False, True])
def test_a_wide_beam_finds_the_likeliest_paths(
    policy: DynamicTree, vocab: int, kind: Callable[..., np.ndarray], conditional: bool
):
    """Of independent marginals, and of scores that hang on the whole path."""
    assert is_exact(policy)
    if conditional:
        tables = kind(np.random.default_rng(vocab), (40, HASHES, vocab)).astype(np.float32)
        tree = grow(policy, tables)[0]
    else:
        tables = by_depth(kind, policy.depth, vocab, seed=vocab)
        tree = of_marginals(policy, tables)
    for row, table in enumerate(tables):

        def scores(path: Path, table: np.ndarray = table) -> np.ndarray:
            if conditional:
                return look_up(table, path)
            return np.where(np.isnan(table[len(path)]), -np.inf, np.minimum(table[len(path)], 0)).astype(np.float32)

        expected = tree_reference.best_first_tree(policy.nodes, policy.depth, policy.top_k, scores)
        got = [path for path, valid in zip(paths(tree, row), tree.valid[row].tolist(), strict=True) if valid][1:]
        assert set(got) == {path for path, _ in expected} and len(got) == len(expected)
    assert_well_formed(tree, policy)


def test_a_beam_as_narrow_as_the_children_misses_some():
    """What EAGLE-2's frontier costs: the same tree with a beam of top_k is a less likely one."""
    scores = by_depth(distinct, 4, 6, seed=2) * 0.2
    narrow, wide = (of_marginals(DynamicTree(40, 3, 4, beam), scores) for beam in (None, 39))

    def likely(tree: Tree, row: int) -> float:
        return sum(np.exp(sum(scores[row, at, token] for at, token in enumerate(path))) for path in paths(tree, row))

    sums = np.array([[likely(tree, row) for tree in (narrow, wide)] for row in range(len(scores))])
    assert (sums[:, 1] >= sums[:, 0]).all() and (sums[:, 1] > sums[:, 0] + 1e-3).any()


def test_frontiers_end_with_the_candidates():
    assert DynamicTree(60, 3, 3, 59).frontiers == (3, 9, 27)
    assert DynamicTree(40, 3, 3, 20).frontiers == (3, 9, 20) and DynamicTree(10, 3, 3, 2).frontiers == (2, 2, 2)
    assert DynamicTree(128, 14, 7, 127).narrowed == DynamicTree(128, 14, 7)
    assert DynamicTree(40, 2, 3, 30).narrowed.beam == 30, "it has too few candidates otherwise"
    assert not is_exact(DynamicTree(60, 7, 10)) and is_exact(DynamicTree(9, 3, 10))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=14), st.sampled_from([distinct, tied]))
def test_static_tree_holds_the_ranked_tokens(choices: list[float], kind: Callable[..., np.ndarray]):
    """Any order of nodes with parents before children; a node whose path is impossible is invalid."""
    parents = (-1, *(int(choice * (node + 1)) for node, choice in enumerate(choices)))
    policy = StaticTree(parents)
    tables = kind(np.random.default_rng(len(parents)), (3, HASHES, 16)).astype(np.float32)
    tree, calls = grow(policy, tables)
    for row, table in enumerate(tables):
        expected: list[Path] = [()]
        valid = [True]
        for node, parent in enumerate(parents[1:], start=1):
            scores = look_up(table, expected[parent])
            token = tree_reference.best(scores, 16)[parents[:node].count(parent)]
            expected.append((*expected[parent], token))
            valid.append(valid[parent] and bool(scores[token] > -np.inf))
        assert paths(tree, row) == expected
        assert tree.valid[row].tolist() == valid
    assert tree.parent.tolist() == [list(parents)] * 3
    assert tuple(calls) == policy.frontiers
    assert_well_formed(tree, policy)


def assert_well_formed(tree: Tree, policy: TreePolicy) -> None:
    """What every drafted tree promises."""
    assert tree.tokens.shape == tree.parent.shape == tree.valid.shape == (len(tree.tokens), policy.nodes)
    assert tree.height == policy.depth
    assert policy.width == max(policy.frontiers, default=0)
    for row, (parents, valid) in enumerate(zip(tree.parent.tolist(), tree.valid.tolist(), strict=True)):
        assert parents[0] == -1 and valid[0]
        assert all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1))
        assert all(valid[parents[node]] for node in range(1, len(valid)) if valid[node])
        assert len(set(paths(tree, row))) == policy.nodes, "siblings hold distinct tokens"
        assert max(map(len, paths(tree, row))) <= policy.depth
    np.testing.assert_array_equal(tree.tokens[:, 0], np.arange(len(tree.tokens)))


def test_eagle1_tree_is_the_published_one():
    ranks: list[str] = [""]
    for node, parent in enumerate(EAGLE1_TREE.parents[1:], start=1):
        ranks.append(ranks[parent] + str(EAGLE1_TREE.parents[:node].count(parent)))
    assert ranks == ["", *sorted(ranks[1:], key=lambda path: (len(path), path))]
    assert [sum(len(path) == depth for path in ranks) for depth in range(7)] == [1, 4, 8, 8, 3, 2, 0]
    leaves = [path for path in ranks if not any(other.startswith(path) and other != path for other in ranks)]
    assert len(leaves) == 15
    assert (EAGLE1_TREE.nodes, EAGLE1_TREE.depth, EAGLE1_TREE.frontiers) == (26, 5, (4, 4, 1, 1))


def test_plain_decoding_drafts_nothing():
    tree, calls = grow(NO_TREE, np.zeros((2, HASHES, 3)))
    assert (NO_TREE.nodes, NO_TREE.depth, NO_TREE.width, calls) == (1, 0, 0, [])
    assert tree.tokens.tolist() == [[0], [1]]
    assert tree.valid.tolist() == [[True], [True]]


def test_policies_are_static_arguments():
    assert DynamicTree(60, 7, 10) == DynamicTree(nodes=60, depth_steps=7, top_k=10) != DynamicTree(60, 7, 9)
    assert len({StaticTree((-1, 0)), StaticTree((-1, 0)), StaticTree((-1, 0, 0)), NO_TREE}) == 3


@pytest.mark.parametrize(
    ("parents", "sentence"),
    [
        ((), "a tree without nodes; give at least the root"),
        ((0,), r"parents\[0\] is 0, expected -1: node 0 is the root"),
        ((-1, 0, 2), r"parents\[2\] is 2, expected an index from 0 to 1: a node comes after its parent"),
        ((-1, 3, 0, 1), r"parents\[1\] is 3, expected an index from 0 to 0"),
        ((-1, -1), r"parents\[1\] is -1, expected an index from 0 to 0"),
        ((-1, False), r"parents\[1\] is False, expected a whole number"),
    ],
)
def test_what_is_not_a_tree_is_refused(parents: tuple, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        StaticTree(parents)


@pytest.mark.parametrize("index", [0.5, "0", None, jnp.zeros((), jnp.int32)])
def test_parents_that_are_not_whole_numbers_are_refused(index: object):
    """Called directly: in tests the constructor's annotation would already refuse these."""
    with pytest.raises(ValueError, match=r"parents\[1\] is .*, expected a whole number"):
        check((-1, index))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1, 7, 10), "a dynamic tree of 1 nodes; expected at least 2"),
        ((60, 7, 0), "top_k = 0; expected at least 1"),
        ((60, -1, 10), "-1 expansions; expected 0 or more"),
        ((60, 7, 10, 0), "beam = 0; expected a frontier of at least 1 node"),
        ((42, 2, 3, 9), "2 expansions with top_k 3 and beam 9 find only 39; ask for at most 40 nodes"),
        ((16, 3, 2), "3 expansions with top_k 2 find only 14; ask for at most 15 nodes"),
    ],
)
def test_impossible_dynamic_trees_are_refused(arguments: tuple[int, ...], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        DynamicTree(*arguments)


@pytest.mark.parametrize("policy", [DynamicTree(4, 1, 3), StaticTree((-1, 0, 1, 1, 1))])
def test_a_tree_wider_than_the_vocabulary_is_refused(policy: TreePolicy):
    with pytest.raises(ValueError, match="asks for the 3 best tokens below a node, but the vocabulary has 2"):
        grow(policy, np.zeros((1, HASHES, 2)))
