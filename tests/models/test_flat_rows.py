"""The nodes of several requests in one row of a pass: what they get is what each request gets in a row of its own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import Rope
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.loop.flat_nodes import FlatNodes, PaddedNodes
from eagle_jax.models import layout
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import quantize_params, scheme_of
from eagle_jax.testing import TINY, cpu_backend

CONFIG = dataclasses.replace(
    TINY, hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32
)
NTK = Rope(kind="dynamic", theta=10000.0, factor=4.0, original_max_position_embeddings=16)
TARGETS = {
    "float32": (CONFIG, None),
    "int8": (CONFIG, "int8"),
    "a window": (dataclasses.replace(CONFIG, sliding_window=5), None),
    "dynamic NTK": (dataclasses.replace(CONFIG, rope=NTK), None),
    "sinks and a softcap": (dataclasses.replace(CONFIG, sinks=True, attn_logit_softcapping=5.0), None),
    "norms after": (dataclasses.replace(CONFIG, norms="after", qk_norm=True, qk_norm_over="projection"), None),
}
NODES, SLOTS = 6, 40
LENGTHS = np.array([30, 0, 7, 19, 3], np.int32)
# Nodes that are left of each request's tree, and the row's size: with padding, and full, the last requests without any.
ROWS = {"padding": ([6, 2, 0, 1, 3], 16), "full": ([6, 2, 4, 0, 0], 12), "one each": ([1, 1, 1, 1, 1], 5)}
CACHE_ROWS = np.array([3, 0, 5, 1, 4], np.int32)  # of six


def trees(counts: list[int]) -> Tree:
    rng = np.random.default_rng(0)
    parent = np.array([[-1, *(rng.integers(0, node) for node in range(1, NODES))] for _ in counts], np.int32)
    tokens = rng.integers(0, CONFIG.vocab_size, parent.shape).astype(np.int32)
    return Tree(jnp.asarray(tokens), jnp.asarray(parent), jnp.arange(NODES)[None] < jnp.asarray(counts)[:, None])


def filled(lm: LM) -> Cache:
    cache = lm.empty_cache(6, SLOTS)
    key = jax.random.key(1)
    leaves, structure = jax.tree.flatten(cache.layers)
    layers = jax.tree.unflatten(
        structure, [jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype) for i, x in enumerate(leaves)]
    )
    ends = np.zeros(6, np.int32)
    ends[CACHE_ROWS] = LENGTHS
    full = dataclasses.replace(cache, layers=layers, length=jnp.asarray(ends), rope_length=jnp.asarray(ends) // 2)
    return full.at_rows(jnp.asarray(CACHE_ROWS))


@functools.partial(jax.jit, static_argnames="size")
def both(lm: LM, tree: Tree, cache: Cache, size: int):
    """Hidden states, a tap and keys of the valid nodes: by request, and in one row."""
    ancestors = tree.ancestors
    positions = jnp.where(tree.valid, cache.length[:, None] + depth_below(ancestors), -1)
    apart = lm.forward(tree.tokens, positions, ancestors, cache, (1,))
    rows = FlatNodes.of(tree.valid, size)
    together = lm.forward(*rows.inputs(tree.tokens, positions, ancestors), cache, (1,), flat=rows.flat_rows)
    nodes = jnp.broadcast_to(jnp.arange(NODES, dtype=jnp.int32)[None], tree.tokens.shape)

    def parts(rows, output):
        keys, values = rows.layer_rows_at(output.kv, nodes)[0]
        return (
            rows.rows_at(output.hidden, nodes),
            rows.rows_at(output.taps[0], nodes),
            keys.swapaxes(1, 2),
            values.swapaxes(1, 2),
        )

    return parts(PaddedNodes(), apart), parts(rows, together), together


def computed(name: str, backend: str, set_operations, rows: str = "padding", tree: Tree | None = None):
    set_operations(EAGLE_JAX_OPS=backend)
    config, scheme = TARGETS[name]
    lm = LM.init(config, jax.random.key(0))
    stored = lm.params if scheme is None else quantize_params(lm.params, scheme_of(scheme))
    lm = dataclasses.replace(lm, params=layout.for_decoding(stored, config.head_dim))
    counts, size = ROWS[rows]
    tree = trees(counts) if tree is None else tree
    return both(lm, tree, filled(lm), size), np.asarray(tree.valid)


CASES = [*((name, "padding") for name in TARGETS), *((name, rows) for name in ("float32", "int8") for rows in ROWS)]


@pytest.mark.matrix
@pytest.mark.parametrize("name, rows", dict.fromkeys(CASES))
def test_the_cpu_backend_gives_the_same_bits(name, rows, set_operations):
    if cpu_backend() is None:
        pytest.skip("the CPU backend is not used")
    (apart, together, output), valid = computed(name, "cpu", set_operations, rows)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[valid], np.asarray(other)[valid])
    assert np.isfinite(np.asarray(output.hidden)).all(), "padding is finite"


@pytest.mark.matrix
@pytest.mark.parametrize("name, rows", dict.fromkeys(CASES))
def test_xla_gives_the_same(name, rows, set_operations):
    (apart, together, output), valid = computed(name, "xla", set_operations, rows)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(np.asarray(one)[valid], np.asarray(other)[valid], rtol=1e-4, atol=1e-5)
    assert np.isfinite(np.asarray(output.hidden)).all(), "padding is finite"


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["cpu", "xla"])
@pytest.mark.parametrize("name", ["float32", "a window"])
def test_a_request_that_is_nan_spoils_no_other(name, backend, set_operations):
    if backend == "cpu" and cpu_backend() is None:
        pytest.skip("the CPU backend is not used")
    set_operations(EAGLE_JAX_OPS=backend)
    config, _ = TARGETS[name]
    lm = LM.init(config, jax.random.key(0))
    params = lm.params | {"embed_tokens": {"embedding": lm.params["embed_tokens"]["embedding"].at[60].set(jnp.nan)}}
    lm = dataclasses.replace(lm, params=layout.for_decoding(params, config.head_dim))
    tree = trees([3, 2, 0, 1, 3])
    tree = dataclasses.replace(tree, tokens=jnp.where(tree.tokens == 60, 59, tree.tokens).at[1, 0].set(60))
    apart, together, _ = both(lm, tree, filled(lm), 16)
    others = np.asarray(tree.valid) & (np.arange(len(LENGTHS)) != 1)[:, None]
    for one, other in zip(apart, together, strict=True):
        assert np.isfinite(np.asarray(other)[others]).all()
        np.testing.assert_allclose(np.asarray(one)[others], np.asarray(other)[others], rtol=1e-4, atol=1e-5)
        assert not np.asarray(other)[2].any(), "a request without nodes gets nothing of the others"
    assert np.isnan(np.asarray(together[0])[1, 0]).any()


def test_what_a_node_gets_hangs_on_its_request(set_operations):
    """The comparison above sees it if a request's cache, or the nodes above a node, are another's."""
    tree = trees(ROWS["padding"][0])
    (apart, _, _), valid = computed("float32", "xla", set_operations)
    other = dataclasses.replace(tree, tokens=jnp.roll(tree.tokens, 1, axis=0))
    (_, changed, _), _ = computed("float32", "xla", set_operations, tree=other)
    assert not np.allclose(np.asarray(apart[0])[valid], np.asarray(changed[0])[valid], atol=1e-2)
