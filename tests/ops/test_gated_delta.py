"""The gated delta rule over trees against its recurrence, node by node along each path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.tree import Tree
from eagle_jax.ops import convolved, earlier_rows, gated_delta, gated_delta_chain, memory_after, rows_before
from eagle_jax.ops.gated_delta import CHUNK, unit_inverse

BATCH, NODES, KEY_HEADS, HEADS, KEY, VALUE, KERNEL, CHANNELS = 2, 9, 2, 4, 5, 7, 4, 6


def tree(seed: int, invalid: int = 0) -> Tree:
    rng = np.random.default_rng(seed)
    parent = np.array([[-1, *(rng.integers(0, i) for i in range(1, NODES))] for _ in range(BATCH)], np.int32)
    valid = np.arange(NODES)[None] < NODES - np.array([[0], [invalid]])
    return Tree(jnp.zeros_like(parent), jnp.asarray(parent), jnp.asarray(valid))


def path(of: Tree, row: int, node: int) -> list[int]:
    nodes = [node]
    while of.parent[row, nodes[0]] >= 0:
        nodes.insert(0, int(of.parent[row, nodes[0]]))
    return nodes


def operands(seed: int = 0, nodes: int = NODES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def unit(*shape):
        x = rng.standard_normal(shape)
        return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

    return {
        "q": unit(BATCH, KEY_HEADS, nodes, KEY),
        "k": unit(BATCH, KEY_HEADS, nodes, KEY),
        "v": rng.standard_normal((BATCH, HEADS, nodes, VALUE)).astype(np.float32),
        "g": -rng.exponential(0.3, (BATCH, HEADS, nodes)).astype(np.float32),
        "beta": rng.uniform(0.1, 0.95, (BATCH, HEADS, nodes)).astype(np.float32),
        "memory": rng.standard_normal((BATCH, HEADS, KEY, VALUE)).astype(np.float32),
    }


def recurrence(x: dict[str, np.ndarray], row: int, nodes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What the last of some tokens in a row gives, and the state after it, in float64."""
    state = x["memory"][row].astype(np.float64)
    each, out = HEADS // KEY_HEADS, np.zeros((HEADS, VALUE))
    for node in nodes:
        for head in range(HEADS):
            key, query = x["k"][row, head // each, node], x["q"][row, head // each, node]
            decayed = np.exp(np.float64(x["g"][row, head, node])) * state[head]
            u = x["beta"][row, head, node] * (x["v"][row, head, node] - decayed.T @ key)
            state[head] = decayed + np.outer(key, u)
            out[head] = state[head].T @ query
    return out, state


@pytest.mark.parametrize("seed", range(3))
def test_each_node_is_its_path_token_by_token(seed: int):
    of, x = tree(seed, invalid=3), operands(seed)
    out, u = jax.jit(gated_delta)(**x, ancestors=of.ancestors)
    for row in range(BATCH):
        for node in np.flatnonzero(of.valid[row]):
            nodes = path(of, row, int(node))
            expected, state = recurrence(x, row, nodes)
            np.testing.assert_allclose(out[row, :, node], expected, atol=2e-6)
            rows = np.array([nodes + [0] * (NODES - len(nodes))] * BATCH)
            at = lambda part: np.take_along_axis(part, rows[:, None, :, None], axis=2)  # noqa: E731
            after = jax.jit(memory_after)(
                x["memory"], at(x["k"]), at(np.asarray(u)), at(x["g"][..., None]), jnp.full(BATCH, len(nodes))
            )
            np.testing.assert_allclose(after[row], state, atol=2e-6)


def as_a_tree(**x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A chain by the products of all pairs of its tokens."""
    n = x["v"].shape[2]
    return gated_delta(**x, ancestors=jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool))[None], (len(x["v"]), n, n)))


@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 22])
def test_a_chain_in_chunks_is_the_recurrence(tokens: int):
    x = operands(tokens, tokens)
    out, u = jax.jit(gated_delta_chain)(**x)
    after = jax.jit(memory_after)(x["memory"], x["k"], u, x["g"][..., None], jnp.full(BATCH, tokens))
    for row in range(BATCH):
        for last in (0, tokens // 2, tokens - 1):
            expected, state = recurrence(x, row, list(range(last + 1)))
            np.testing.assert_allclose(out[row, :, last], expected, atol=2e-6)
        np.testing.assert_allclose(after[row], state, atol=4e-6)


def test_gradients_of_a_chain_in_chunks():
    """Of everything that goes in, through both outputs; a chain cut in two, without its state, has others."""
    x = operands(5, CHUNK + 30)

    def gradients(function, x: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        def total(x: dict[str, jax.Array]) -> jax.Array:
            out, u = function(**x)
            return jnp.sum(jnp.sin(out)) + jnp.sum(u**2)

        return jax.jit(jax.grad(total))(x)

    expected, got = gradients(as_a_tree, x), gradients(gated_delta_chain, x)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=0, atol=2e-6 * np.abs(gradient).max(), err_msg=name)
    cut = {name: value[:, :, :CHUNK] if name != "memory" else value for name, value in x.items()}
    assert np.abs(gradients(as_a_tree, cut)["v"] - expected["v"][:, :, :CHUNK]).max() > 1e-3


def test_memory_of_a_chain_is_linear_in_its_tokens():
    """As the compiler counts it, also for gradients; with all pairs of tokens it is four times as much for twice."""

    def taken(function, tokens: int) -> int:
        sizes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in operands(0, tokens).items()}
        return jax.jit(function).lower(**sizes).compile().memory_analysis().temp_size_in_bytes

    def gradients(**x: jax.Array) -> dict[str, jax.Array]:
        return jax.grad(lambda x: jnp.sum(gated_delta_chain(**x)[0]))(x)

    for function in (gated_delta_chain, gradients):
        assert taken(function, 16 * CHUNK) < 2.2 * taken(function, 8 * CHUNK)
    assert taken(as_a_tree, 16 * CHUNK) > 3.5 * taken(as_a_tree, 8 * CHUNK) > 10 * taken(gated_delta_chain, 8 * CHUNK)


@pytest.mark.parametrize("size", [1, 2, 5, 8, 60])
def test_the_inverse_of_a_unit_triangle(size: int):
    """Of keys of length 1, as the rule has it; also where what is not read is no number."""
    keys = np.random.default_rng(size).standard_normal((2, 3, size, 8))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    lower = (0.9 * keys @ keys.swapaxes(-1, -2)).astype(np.float32)
    expected = np.linalg.inv(np.tril(lower.astype(np.float64), -1) + np.eye(size))
    lower[..., *np.triu_indices(size)] = np.nan
    got = jax.jit(unit_inverse)(lower)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_another_path_is_another_result():
    """Negative control: a chain over all nodes is not the tree."""
    of, x = tree(0), operands()
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((NODES, NODES), bool))[None], (BATCH, NODES, NODES))
    assert (
        jnp.abs(
            jax.jit(gated_delta)(**x, ancestors=of.ancestors)[0] - jax.jit(gated_delta)(**x, ancestors=chain)[0]
        ).max()
        > 0.1
    )


def test_what_does_not_count_changes_nothing():
    x = operands()
    u, g = np.full((BATCH, HEADS, NODES, VALUE), np.nan, np.float32), np.full((BATCH, HEADS, NODES, 1), np.nan)
    k = np.full_like(x["k"], np.nan)
    after = jax.jit(memory_after)(x["memory"], k, u, g.astype(np.float32), jnp.zeros(BATCH, jnp.int32))
    np.testing.assert_array_equal(after, x["memory"])
    k[0, :, :2], u[0, :, :2], g[0, :, :2] = 0.1, 0.2, -0.3
    after = jax.jit(memory_after)(x["memory"], k, u, g.astype(np.float32), jnp.array([2, 0], jnp.int32))
    assert np.isfinite(after).all()
    np.testing.assert_array_equal(after[1], x["memory"][1])


def test_the_convolution_reads_each_path_and_what_was_before_it():
    of, rng = tree(1, invalid=2), np.random.default_rng(1)
    inputs = rng.standard_normal((BATCH, NODES, CHANNELS)).astype(np.float32)
    window = rng.standard_normal((BATCH, KERNEL - 1, CHANNELS)).astype(np.float32)
    weight = rng.standard_normal((CHANNELS, KERNEL)).astype(np.float32)
    chain = earlier_rows(jnp.tril(jnp.ones((1, NODES, NODES), bool)), KERNEL - 1)
    np.testing.assert_array_equal(rows_before(NODES, KERNEL - 1), chain)
    got = jax.jit(convolved)(inputs, window, weight, earlier_rows(of.ancestors, KERNEL - 1))
    for row in range(BATCH):
        for node in np.flatnonzero(of.valid[row]):
            rows = np.concatenate([window[row], inputs[row, path(of, row, int(node))]])[-KERNEL:]
            total = np.sum(rows * weight.T, axis=0, dtype=np.float64)
            np.testing.assert_allclose(got[row, node], total / (1 + np.exp(-total)), atol=1e-5)
