"""A target with recurrent layers: its nodes, its state, and what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import DeltaNet, LlamaConfig, Rope
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.loop.flat_nodes import FlatNodes
from eagle_jax.models.cache import Cache
from eagle_jax.models.delta_state import DeltaState
from eagle_jax.models.lm import LM, causal
from eagle_jax.ops.gated_delta import CHUNK
from eagle_jax.testing import TINY

NET = DeltaNet(layers=(0, 1, 3), num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=12, conv_kernel=4)
CONFIG = dataclasses.replace(
    TINY,
    num_hidden_layers=4,
    rope=Rope(theta=1e4, partial_rotary_factor=0.5),
    qk_norm=True,
    norm_plus_one=True,
    gated=True,
    delta_net=NET,
)
PREFIX, SLOTS, NODES = 7, 40, 6
TOLERANCE = 2e-5  # of logits of size 1


@functools.cache
def target() -> LM:
    params = LM.init(CONFIG, jax.random.key(0)).params
    return LM(params=jax.tree.map(lambda x: 3 * x if x.ndim == 2 else x, params), config=CONFIG)


def text(rows: int, length: int, seed: int = 1) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, length), 0, CONFIG.vocab_size, jnp.int32)


@jax.jit
def one_token(lm: LM, token: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    ones = jnp.ones((len(token), 1, 1), bool)
    output = lm.forward(token[:, None], cache.length[:, None], ones, cache)
    return lm.logits(output.hidden)[:, 0], cache.commit(output.kv, jnp.ones_like(cache.length))


def read(lm: LM, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Logits after the last token, and the cache of all, token by token."""
    logits = jnp.zeros(())
    for token in tokens.T:
        logits, cache = one_token(lm, token, cache)
    return logits, cache


def trees(rows: int, seed: int = 0) -> Tree:
    rng = np.random.default_rng(seed)
    parent = np.array([[-1, *(rng.integers(0, i) for i in range(1, NODES))] for _ in range(rows)], np.int32)
    return Tree(text(rows, NODES, seed=5), jnp.asarray(parent), jnp.ones((rows, NODES), bool))


@jax.jit
def verified(lm: LM, tree: Tree, cache: Cache):
    positions = cache.length[:, None] + depth_below(tree.ancestors)
    output = lm.forward(tree.tokens, positions, tree.ancestors, cache, (2,))
    return lm.logits(output.hidden), output


@functools.cache
def states() -> tuple[Cache, Tree]:
    return read(target(), text(3, PREFIX), target().empty_cache(3, SLOTS))[1], trees(3)


def test_each_node_is_its_path_token_by_token():
    lm, (cache, tree) = target(), states()
    logits, _ = verified(lm, tree, cache)
    for row in range(3):
        for node in range(NODES):
            path = np.flatnonzero(tree.ancestors[row, node])
            expected, _ = read(lm, jnp.broadcast_to(tree.tokens[row, path], (3, len(path))), cache)
            np.testing.assert_allclose(logits[row, node], expected[row], atol=TOLERANCE)


def test_a_committed_path_is_the_state_of_its_tokens():
    """Rows accept 0, 2 and 3 nodes; the first keeps its state bit for bit."""
    lm, (cache, tree) = target(), states()
    _, output = verified(lm, tree, cache)
    paths = [np.flatnonzero(tree.ancestors[row, node]) for row, node in ((1, NODES - 1), (2, NODES - 1))]
    counts = np.array([0, len(paths[0]), min(len(paths[1]), 3)], np.int32)
    nodes = np.zeros((3, 4), np.int32)
    for row, path in enumerate(paths, start=1):
        nodes[row, : counts[row]] = path[: counts[row]]
    added = jax.tree.map(lambda x: jnp.take_along_axis(x, jnp.asarray(nodes)[:, None, :, None], axis=2), output.kv)
    committed = cache.commit(added, jnp.asarray(counts))
    for row in range(3):
        path = nodes[row, : counts[row]]
        _, expected = read(lm, jnp.broadcast_to(tree.tokens[row, path], (3, len(path))), cache)
        for got, state in zip(committed.layers, expected.layers, strict=True):
            if isinstance(got, DeltaState):
                for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(state), strict=True):
                    np.testing.assert_allclose(one[row], other[row], atol=0 if row == 0 else TOLERANCE)


def test_a_whole_text_in_chunks_is_its_tree():
    """`LM.causal`, which training reads with, against a pass over a tree without branches.

    The text of seed 1 has a key that is short before it is normalized, which magnifies rounding tenfold there.
    """
    lm, tokens = target(), text(2, CHUNK + 9, seed=2)
    cache = lm.empty_cache(2, 0)
    got = jax.jit(lambda lm, tokens: lm.causal(tokens, (3,)))(lm, tokens)
    expected = jax.jit(lambda lm, tokens: lm.forward(tokens, *causal(2, CHUNK + 9), cache, (3,)))(lm, tokens)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * max(1, np.abs(other).max()))


def test_chunks_of_a_prompt():
    """The whole text at once, and in chunks of 5 with padding at the end, which changes no state."""
    lm, tokens = target(), text(2, 13)
    expected = jax.jit(lambda lm, tokens: lm(tokens)[1])(lm, tokens)
    cache, lengths = lm.empty_cache(2, SLOTS), jnp.array([13, 8], jnp.int32)
    padded = jnp.pad(tokens, ((0, 0), (0, 2)))
    for start in range(0, 15, 5):
        positions = start + jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (2, 5))
        chain = jnp.broadcast_to(jnp.tril(jnp.ones((5, 5), bool))[None], (2, 5, 5))
        output = lm.forward(
            padded[:, start : start + 5], jnp.where(positions < lengths[:, None], positions, -1), chain, cache
        )
        ends = jnp.minimum(lengths, start + 5)
        cache = cache.write(output.kv, jnp.full(2, start, jnp.int32), ends)
        logits = lm.logits(output.hidden)
        for row in range(2):
            seen = max(min(int(lengths[row]) - start, 5), 0)
            np.testing.assert_allclose(logits[row, :seen], expected[row, start : start + seen], atol=TOLERANCE)
    _, short = read(lm, tokens[:, :8], lm.empty_cache(2, SLOTS))
    for got, state in zip(cache.layers, short.layers, strict=True):
        if isinstance(got, DeltaState):
            jax.tree.map(lambda one, other: np.testing.assert_allclose(one[1], other[1], atol=TOLERANCE), got, state)


def test_rows_of_a_cache_and_requests_that_share_a_row():
    """The trees of three requests, of which one has none, at rows 3, 0 and 2 of four, with padding and without."""
    lm, (cache, tree) = target(), states()
    valid = jnp.arange(NODES)[None] < jnp.array([6, 2, 0])[:, None]
    tree = dataclasses.replace(tree, valid=valid)
    rows = jnp.array([3, 0, 2], jnp.int32)

    def spread(x: jax.Array) -> jax.Array:
        return jnp.full((4, *x.shape[1:]), 7, x.dtype).at[rows].set(x)

    whole = Cache(
        layers=jax.tree.map(spread, cache.layers), length=spread(cache.length), rope_length=spread(cache.rope_length)
    )
    part = whole.at_rows(rows)
    ancestors = tree.ancestors
    positions = jnp.where(valid, cache.length[:, None] + depth_below(ancestors), -1)
    apart = lm.forward(tree.tokens, positions, ancestors, part, (2,))
    one = FlatNodes.of(valid, 10)
    together = lm.forward(*one.inputs(tree.tokens, positions, ancestors), part, (2,), flat=one.flat_rows)
    nodes = jnp.broadcast_to(jnp.arange(NODES, dtype=jnp.int32)[None], valid.shape)
    mask = np.asarray(valid)
    np.testing.assert_allclose(one.rows_at(together.hidden, nodes)[mask], apart.hidden[mask], atol=TOLERANCE)
    in_rows = one.layer_rows_at(together.kv, nodes)
    for got, expected in zip(jax.tree.leaves(in_rows), jax.tree.leaves(apart.kv), strict=True):
        got, expected = np.moveaxis(got, 2, 1), np.moveaxis(expected, 2, 1)
        np.testing.assert_allclose(got[mask], expected[mask], atol=TOLERANCE)
    counts = jnp.array([1, 2, 0], jnp.int32)
    committed = part.commit(in_rows, counts)
    alone = cache.commit(apart.kv, counts)
    for got, expected in zip(committed.layers, alone.layers, strict=True):
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one[1], 7)  # no request has this row
            for row, end in enumerate(np.asarray(committed.length)):  # what lies beyond it is never read
                seen = slice(0, end) if got.by_position else slice(None)
                np.testing.assert_allclose(one[rows[row]][:, seen], other[row][:, seen], atol=TOLERANCE)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_value_heads": 3}, "not a multiple of num_key_heads=2"),
        ({"conv_kernel": 1}, "conv_kernel=1 of linear attention; expected at least 2"),
        ({"key_head_dim": 0}, "key_head_dim=0 of linear attention"),
        ({"layers": (1, 0)}, "expected ascending layer numbers from 0 to 3"),
        ({"layers": (0, 1, 2, 3)}, "expected one with attention at least"),
    ],
)
def test_configs_that_cannot_be(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, delta_net=dataclasses.replace(NET, **changes))


def test_the_state_does_not_grow_with_the_text():
    def sizes(config: LlamaConfig, slots: int) -> list[int]:
        cache = jax.eval_shape(lambda: LM.init(config, jax.random.key(0)).empty_cache(2, slots))
        return [sum(x.size for x in jax.tree.leaves(layer)) for layer in cache.layers]

    small, large = sizes(CONFIG, 64), sizes(CONFIG, 6400)
    assert [one == other for one, other in zip(small, large, strict=True)] == [True, True, False, True]
