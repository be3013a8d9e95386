"""What guesses are worth, and counting what became of them: against loops over single guesses."""

import collections
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_reference

from eagle_jax.decoding.calibration import DEPTHS, LOG_ODDS, MIN_PROBABILITY, STEP, Calibration, Counts, between_knots
from eagle_jax.decoding.policy import DynamicTree, StaticTree
from eagle_jax.decoding.tree import Tree

KNOTS = len(LOG_ODDS)


def rising(rng: np.random.Generator, batch: int) -> np.ndarray:
    return np.sort(rng.random((batch, DEPTHS, KNOTS)), axis=2).astype(np.float32)


def shares(edge: float) -> dict[int, float]:
    """The knots that a log-probability lies between, with their weights."""
    p = math.exp(edge)
    odds = min(max(math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(99, p - 0.5), LOG_ODDS[0]), LOG_ODDS[-1])
    low = min(int((odds - LOG_ODDS[0]) // STEP), KNOTS - 2)
    share = (odds - LOG_ODDS[low]) / STEP
    return {low: 1 - share, low + 1: share}


@pytest.mark.parametrize("edge", [-30.0, -7.0, -3.3, -math.log(2), -0.2, -0.004, 0.0])
def test_weights_of_knots(edge):
    found = np.asarray(between_knots(jnp.float32(edge)))
    expected = np.zeros(KNOTS)
    for knot, share in shares(edge).items():
        expected[knot] = share
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_guess_is_worth_what_the_table_says_at_its_depth():
    table = rising(np.random.default_rng(0), 2)
    edges = jnp.asarray(np.log([[[0.02, 0.5], [0.97, 0.3]]] * 2), jnp.float32)
    for depth in (0, 3, DEPTHS + 2):
        found = np.exp(Calibration(jnp.asarray(table))(edges, depth))
        for place in np.ndindex(found.shape):
            row = table[place[0], min(depth, DEPTHS - 1)]
            expected = sum(share * row[knot] for knot, share in shares(float(edges[place])).items())
            assert found[place] == pytest.approx(expected, abs=1e-4)


def test_what_is_no_guess_stays_none_and_a_guess_stays_possible():
    never = Calibration(jnp.zeros((1, DEPTHS, KNOTS)))
    found = np.asarray(never(jnp.array([[-jnp.inf, jnp.nan, -20.0, 0.0, 1e-7]]), 0))
    np.testing.assert_array_equal(found[0, :2], -np.inf)
    np.testing.assert_allclose(np.exp(found[0, 2:]), MIN_PROBABILITY, rtol=1e-3)
    always = Calibration(jnp.ones((1, DEPTHS, KNOTS)))
    assert (np.asarray(always(jnp.array([[-20.0, 0.0]]), 0)) <= 0).all()


def random_trees(rng: np.random.Generator, batch: int, nodes: int) -> Tree:
    """The i-th child of a node holds token i: first children are drawn most of the time, so that paths get long."""
    parent, tokens = np.full((batch, nodes), -1), np.zeros((batch, nodes), int)
    valid = np.ones((batch, nodes), bool)
    for row, node in np.ndindex(batch, nodes):
        if node:
            above = parent[row, node] = rng.integers(max(0, node - 2), node)
            tokens[row, node] = (parent[row, :node] == above).sum()
            valid[row, node] = valid[row, above] and rng.random() < 0.9
    edges = np.log(rng.random((batch, nodes)))
    edges[~valid] = -np.inf
    arrays = [jnp.asarray(part) for part in (tokens, parent, valid)]
    return Tree(*arrays, edges=jnp.asarray(edges, jnp.float32))


def test_counts_are_those_of_single_guesses():
    rng = np.random.default_rng(1)
    counts, guessed, accepted = Counts.none(3), np.zeros((3, DEPTHS, KNOTS)), np.zeros((3, DEPTHS, KNOTS))
    nodes = depth = 14
    deepest = 0
    for _ in range(30):
        tree, draws, active = random_trees(rng, 3, nodes), rng.random((3, nodes)) < 0.1, rng.random(3) < 0.8
        counts = counts.of_step(tree, jnp.asarray(draws, jnp.int32), depth, jnp.asarray(active))
        tokens, parent, valid = (np.asarray(part).tolist() for part in (tree.tokens, tree.parent, tree.valid))
        for row in np.flatnonzero(active):
            path, _ = tree_reference.walk(tokens[row], parent[row], valid[row], draws[row].tolist())
            for level, above in enumerate(path):
                for node in range(1, nodes):
                    if valid[row][node] and parent[row][node] == above:
                        place = row, min(level, DEPTHS - 1)
                        deepest = max(deepest, level)
                        for knot, share in shares(float(tree.edges[row, node])).items():
                            guessed[*place, knot] += share
                            accepted[*place, knot] += share * (tokens[row][node] == draws[row, above])
    assert deepest >= DEPTHS, "no guess was deep enough to be counted with others"
    np.testing.assert_allclose(counts.guessed, guessed, atol=0.01)
    np.testing.assert_allclose(counts.accepted, accepted, atol=0.01)


def test_what_is_expected_moves_from_what_was_known_to_what_was_counted():
    prior = jnp.asarray(rising(np.random.default_rng(2), 1))
    nothing = Counts.none(1)
    np.testing.assert_allclose(nothing.after(prior, 8.0).probability, prior, atol=1e-6)
    many = Counts(guessed=jnp.full_like(prior, 1e6), accepted=jnp.full_like(prior, 2.5e5))
    np.testing.assert_allclose(many.after(prior, 8.0).probability, 0.25, atol=1e-3)
    # one knot with a better record than those above it raises these: nothing falls as the drafter gets surer
    one = dataclasses.replace(
        nothing, guessed=nothing.guessed.at[:, :, 3].set(1e6), accepted=nothing.accepted.at[:, :, 3].set(9e5)
    )
    assert (np.diff(one.after(prior, 8.0).probability, axis=2) >= 0).all()


POLICIES = [
    DynamicTree(9, 3, 3),
    DynamicTree(7, 2, 3, 6),
    DynamicTree(6, 4, 2, min_probability=0.2),
    StaticTree((-1, 0, 0, 1, 1, 3)),
]


@pytest.mark.matrix
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_trees_tell_what_each_guess_was_given_and_what_its_path_is_worth(policy):
    """Random scores by depth; a table that doubts what the drafter is sure of."""
    rng = np.random.default_rng(3)
    scores = jax.nn.log_softmax(jnp.asarray(rng.normal(0, 2, (2, policy.depth, 20)), jnp.float32))
    calibration = Calibration(jnp.asarray(rising(rng, 2)) * 0.9)

    def extend(carry, level, tokens, parent_row):
        return jnp.broadcast_to(scores[:, level : level + 1], (*tokens.shape, 20)), carry

    tree = policy.grow(jnp.zeros(2, jnp.int32), scores[:, 0], extend, None, calibration)
    depths = collections.Counter()
    for row in range(2):
        depth = {0: 0}
        for node in range(1, policy.nodes):
            if not tree.valid[row, node]:
                continue
            above = int(tree.parent[row, node])
            depth[node] = depth[above] + 1
            depths[depth[node]] += 1
            edge = scores[row, depth[above], tree.tokens[row, node]]
            assert tree.edges[row, node] == edge
            own = calibration(edge[None, None].repeat(2, axis=0), depth[above])[row, 0]
            assert tree.scores[row, node] == pytest.approx(float(tree.scores[row, above] + own), abs=1e-5)
    assert len(depths) > 1


def test_a_chain_ends_where_its_path_is_worth_little():
    scores = jnp.log(jnp.array([[0.9, 0.1]]))
    extend = lambda carry, level, tokens, parent_row: (jnp.broadcast_to(scores, (*tokens.shape, 2)), carry)  # noqa: E731
    doubtful = Calibration(jnp.full((1, DEPTHS, KNOTS), 0.5))
    lengths = [
        int(DynamicTree.chain(6, 0.2).grow(jnp.zeros(1, jnp.int32), scores, extend, None, one).valid.sum())
        for one in (None, doubtful)
    ]
    assert lengths == [6, 3]
