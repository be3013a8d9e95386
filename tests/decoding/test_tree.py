"""The tree's derived properties against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_reference
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_jax.decoding.tree import Tree, depth_below


@st.composite
def trees(draw: st.DrawFn, nodes: int = 12) -> tuple[list[int], list[bool]]:
    """Parents and validity of one tree; nothing below an invalid node is valid."""
    parents, valid = [-1], [True]
    for node in range(1, nodes):
        parents.append(draw(st.integers(0, node - 1)))
        valid.append(valid[parents[-1]] and draw(st.integers(0, 4)) > 0)
    return parents, valid


def build(parents: list[list[int]], valid: list[list[bool]] | None = None, height: int | None = None) -> Tree:
    parent = jnp.array(parents, jnp.int32)
    usable = jnp.ones_like(parent, bool) if valid is None else jnp.array(valid)
    return Tree(tokens=jnp.zeros_like(parent), parent=parent, valid=usable, height=height)


def test_the_mask_is_the_picture_in_the_docstring():
    tree = build([[-1, 0, 0, 1, 2, 3]])
    picture = """
        1 . . . . .
        1 1 . . . .
        1 . 1 . . .
        1 1 . 1 . .
        1 . 1 . 1 .
        1 1 . 1 . 1
    """
    rows = [" ".join("1" if seen else "." for seen in row) for row in tree.ancestors[0].tolist()]
    assert rows == [line.strip() for line in picture.strip().splitlines()]
    assert all(row in (Tree.__doc__ or "") for row in rows)
    assert depth_below(tree.ancestors).tolist() == [[0, 1, 1, 2, 2, 3]]


@settings(max_examples=200, deadline=None)
@given(st.lists(trees(), min_size=2, max_size=2))
def test_ancestors_are_the_transitive_closure_and_depth_counts_them(rows: list[tuple[list[int], list[bool]]]):
    tree = build([parents for parents, _ in rows], [valid for _, valid in rows])
    expected = np.stack([tree_reference.ancestors(*row) for row in rows])
    np.testing.assert_array_equal(tree.ancestors, expected)
    np.testing.assert_array_equal(depth_below(tree.ancestors), expected.sum(-1) - 1)


def test_an_invalid_node_attends_to_itself_only():
    tree = build([[-1, 0, 1, 0]], [[True, False, False, True]])
    np.testing.assert_array_equal(tree.ancestors[0, 1:3], np.eye(4, dtype=bool)[1:3])
    assert depth_below(tree.ancestors).tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 17, 256])
def test_a_chain_is_causal_with_its_height_as_the_bound(length: int):
    chain = build([list(range(-1, length - 1))], height=length - 1)
    np.testing.assert_array_equal(chain.ancestors[0], np.tril(np.ones((length, length), bool)))


def test_the_bound_decides_how_many_products_are_compiled():
    def products(height: int | None) -> int:
        tree = build([list(range(-1, 59))], height=height)
        return str(jax.make_jaxpr(lambda t: t.ancestors)(tree)).count("dot_general")

    assert [products(height) for height in (0, 1, 2, 8, None)] == [0, 0, 1, 3, 6]


def test_a_chain_ends_before_the_first_token_that_is_no_guess():
    root, tokens = jnp.array([7, 8]), jnp.array([[1, 2, 3], [4, 5, 6]])
    chain = Tree.chain(root, tokens, jnp.array([[True, False, True], [True, True, True]]))
    assert chain.tokens.tolist() == [[7, 1, 2, 3], [8, 4, 5, 6]] and chain.parent.tolist() == [[-1, 0, 1, 2]] * 2
    assert chain.valid.tolist() == [[True, True, False, False], [True] * 4] and chain.height == 3


def test_a_root_alone_is_a_chain_without_guesses():
    alone = Tree.root_only(jnp.array([7, 8]))
    chain = Tree.chain(jnp.array([7, 8]), jnp.zeros((2, 0), jnp.int32), jnp.zeros((2, 0), bool))
    assert jax.tree.structure(alone) == jax.tree.structure(chain)
    jax.tree.map(np.testing.assert_array_equal, alone, chain)
