"""The walk against a Python loop, and the method itself: verified text equals plainly decoded text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_reference
from batches import settings_of

from eagle_jax.decoding.sampling import Sampling, Settings, at_depth, draw, noise
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.decoding.verify import Accepted, walk

jitted_walk = jax.jit(walk, static_argnums=2)


def random_trees(rng: np.random.Generator, batch: int, nodes: int, vocab: int) -> Tree:
    """Trees with distinct siblings; a node whose token a sibling holds already is invalid, as are some others."""
    tokens = rng.integers(vocab, size=(batch, nodes))
    parent = np.stack([np.full(batch, -1)] + [rng.integers(0, j, batch) for j in range(1, nodes)], axis=1)
    valid = np.ones((batch, nodes), bool)
    for b in range(batch):
        for j in range(1, nodes):
            siblings = [i for i in range(1, j) if parent[b, i] == parent[b, j] and valid[b, i]]
            repeated = tokens[b, j] in tokens[b, siblings]
            valid[b, j] = valid[b, parent[b, j]] and not repeated and rng.random() > 0.1
    return Tree(jnp.array(tokens, jnp.int32), jnp.array(parent, jnp.int32), jnp.array(valid))


def expected(tree: Tree, draws: jax.Array, depth: int) -> Accepted:
    nodes = np.zeros((len(draws), depth + 1), int)
    tokens = np.full_like(nodes, -1)
    count = []
    for b in range(len(draws)):
        path, drawn = tree_reference.walk(
            tree.tokens[b].tolist(), tree.parent[b].tolist(), tree.valid[b].tolist(), draws[b].tolist()
        )
        nodes[b, : len(path)], tokens[b, : len(path)] = path, drawn
        count.append(len(path))
    return Accepted(jnp.array(nodes, jnp.int32), jnp.array(tokens, jnp.int32), jnp.array(count, jnp.int32))


@pytest.mark.parametrize(("nodes", "vocab"), [(1, 2), (2, 2), (9, 2), (9, 3), (26, 2)])
def test_walk_is_the_obvious_loop(nodes: int, vocab: int):
    rng = np.random.default_rng(nodes * vocab)
    tree = random_trees(rng, 200, nodes, vocab)
    draws = jnp.array(rng.integers(vocab, size=(200, nodes)), jnp.int32)
    got, want = jitted_walk(tree, draws, nodes - 1), expected(tree, draws, nodes - 1)
    assert nodes < 9 or int(want.count.max()) >= 4
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_the_walk_stops_at_an_invalid_node_that_holds_the_drawn_token():
    tree = Tree(jnp.array([[7, 3, 4]]), jnp.array([[-1, 0, 1]]), jnp.array([[True, False, False]]))
    accepted = jitted_walk(tree, jnp.array([[3, 4, 5]]), 2)
    assert (accepted.nodes.tolist(), accepted.draws.tolist(), accepted.count.tolist()) == (
        [[0, 0, 0]],
        [[3, -1, -1]],
        [1],
    )


def test_siblings_with_one_token_cannot_inflate_the_count():
    """A drafter that breaks the contract may waste nodes; it may not change the text."""
    tree = Tree(jnp.array([[7, 3, 3, 4]]), jnp.array([[-1, 0, 0, 2]]), jnp.ones((1, 4), bool))
    accepted = jitted_walk(tree, jnp.array([[3, 4, 4, 5]]), 2)
    assert accepted.draws.tolist() == [[3, 4, 5]]
    assert accepted.count.tolist() == [3]


# The method on a target that is a table: logits[previous token]. What it decodes must not depend on what is drafted.

VOCAB, DEPTH, LENGTH = 4, 3, 12
SAMPLED = Sampling(sampled=True, filtered=False)


def plain(table: jax.Array, settings: Settings, batch: int) -> jax.Array:
    """One token after the other, `[b LENGTH]`, from token 0 at position 0."""

    def step(token: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        at = jnp.full((batch, 1), position + 1)
        drawn = draw(table[token][:, None], noise(settings, at, VOCAB), settings, SAMPLED)[:, 0]
        return drawn, drawn

    _, tokens = jax.lax.scan(step, jnp.zeros(batch, jnp.int32), jnp.arange(LENGTH, dtype=jnp.int32))
    return tokens.T


@jax.jit
def verify_cycle(table: jax.Array, settings: Settings, tree: Tree, position: jax.Array) -> Accepted:
    """One target pass over trees whose roots sit at `position[b]`."""
    depths = jnp.arange(1, DEPTH + 2, dtype=jnp.int32)
    by_depth = noise(settings, position[:, None] + depths[None, :], VOCAB)
    draws = draw(table[tree.tokens], at_depth(by_depth, depth_below(tree.ancestors)), settings, SAMPLED)
    return walk(tree, draws, DEPTH)


def drafted(rng: np.random.Generator, roots: list[int], truth: np.ndarray, position: list[int]) -> Tree:
    """Random trees no deeper than DEPTH: from garbage to guesses that follow the true text most of the time."""
    nodes, trees = 9, []
    for root, start, line in zip(roots, position, truth, strict=True):
        tokens, parent, valid, depth = [root], [-1], [True], [0]
        goodness = rng.random()
        for j in range(1, nodes):
            above = int(rng.choice([i for i in range(j) if depth[i] < DEPTH]))
            depth.append(depth[above] + 1)
            index = start + depth[above]
            good = rng.random() < goodness and index < LENGTH
            tokens.append(int(line[index]) if good else int(rng.integers(VOCAB)))
            parent.append(above)
            repeated = any(parent[i] == above and tokens[i] == tokens[j] for i in range(1, j))
            valid.append(valid[above] and not repeated)
        trees.append((tokens, parent, valid))
    tokens, parent, valid = (np.array(part) for part in zip(*trees, strict=True))
    return Tree(jnp.array(tokens, jnp.int32), jnp.array(parent, jnp.int32), jnp.array(valid), height=DEPTH)


@pytest.mark.parametrize("model", range(3))
def test_verified_text_is_plainly_decoded_text_whatever_is_drafted(model: int):
    """100 seeds on each of three targets, greedy and hot rows in one batch, rows at their own positions."""
    rng, batch = np.random.default_rng(model), 100
    table = jnp.array(rng.normal(size=(VOCAB, VOCAB)) * 2, jnp.float32)
    settings = settings_of(batch, rng.choice([0.0, 0.5, 1.0, 1.5], batch))
    truth = np.asarray(plain(table, settings, batch))
    texts: list[list[int]] = [[] for _ in range(batch)]
    steps = 0
    while min(map(len, texts)) < LENGTH:
        position = [len(text) for text in texts]
        tree = drafted(rng, [text[-1] if text else 0 for text in texts], truth, position)
        accepted = verify_cycle(table, settings, tree, jnp.array(position, jnp.int32))
        for text, tokens, count in zip(texts, accepted.draws.tolist(), accepted.count.tolist(), strict=True):
            text.extend(tokens[:count] if len(text) < LENGTH else [])
        steps += 1
    assert [text[:LENGTH] for text in texts] == truth.tolist()
    assert steps < LENGTH, "no guess was ever accepted by every row: the test would show nothing"
