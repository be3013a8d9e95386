"""The blocks of a decoder layer on the CPU backend equal their references, and what they do not compute is left."""

import concurrent.futures
import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import Experts, Rope
from eagle_jax.models import layout
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache, KVState
from eagle_jax.models.draft_head import one_slot
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import empty_cache
from eagle_jax.models.target import PADDING_POSITION
from eagle_jax.ops import VARIABLE
from eagle_jax.ops.cpu import backend
from eagle_jax.ops.quantized import QuantType, quantize
from eagle_jax.testing import TINY

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

CONFIG = dataclasses.replace(
    TINY, hidden_size=96, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=32
)
SLOTS = 140
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def laid_out(config, dtype, key, *, input_norm=True, sparse=False):
    """A layer, and its weights for decoding: of about the size that trained ones have."""
    layer = DecoderLayer(config, jnp.dtype(dtype), input_norm=input_norm, sparse=sparse)
    x = jnp.zeros((1, 1, config.hidden_size))
    sight, cache = one_slot(config, jnp.float32)
    params = nn.unbox(layer.init(key, x, sight, (cache.k[0], cache.v[0]), None)["params"])
    params = jax.tree.map(lambda leaf: 5 * leaf if leaf.ndim > 1 else leaf * 1.3, params)
    return layer, layout.for_decoding(params, config.head_dim)


def sight_of(config, cache, key, batch, nodes, beside):
    """Nodes of which each sees itself and, by lot, others."""
    visible = jax.random.bernoulli(key, 0.5, (batch, nodes, beside + nodes))
    visible |= jnp.pad(jnp.eye(nodes, dtype=bool), ((0, 0), (beside, 0)))[None]
    positions = cache.length[:, None] + jnp.arange(nodes)[None]
    fresh = jnp.concatenate([jnp.zeros((batch, beside), positions.dtype) + cache.length[:, None], positions], axis=1)
    return attention_inputs(config, positions, visible, cache, fresh)


def applied(layer, params, config, keys, *, batch=2, nodes=5, beside=0, slots=SLOTS):
    """The layer's outputs, its keys and its values over a cache of random ones."""
    prefix = empty_cache(config, batch, slots, jnp.float32)
    shape = prefix.k[0].shape
    k, v = (jax.random.normal(key, shape) for key in keys[:2])
    lengths = jnp.asarray(np.linspace(0, slots - nodes, batch), jnp.int32)
    cache = Cache(layers=(KVState(k, v),), length=lengths, rope_length=lengths)
    earlier = jax.random.normal(keys[2], (2, batch, shape[1], beside, shape[3]))
    x = 3 * jax.random.normal(keys[3], (batch, nodes, config.hidden_size))
    sight = sight_of(config, cache, keys[4], batch, nodes, beside)
    before = tuple(earlier) if beside else None
    out, own = jax.jit(lambda params, x: layer.apply({"params": params}, x, sight, (k, v), before))(params, x)
    return [out, *own]


def watched(monkeypatch):
    """Which blocks the backend computes from now on, in order."""
    found = []

    def watch(name):
        block = getattr(backend, name)

        def run(*args, **fixed):
            try:
                made = block(*args, **fixed)
            except NotImplementedError:
                found.append((name, False))
                raise
            found.append((name, True))
            return made

        return run

    for name in ("attention_block", "mlp_block"):
        monkeypatch.setattr(backend, name, watch(name))
    return found


def by_reference(set_operations):
    set_operations(EAGLE_JAX_OPS="attention_block:xla,mlp_block:xla")


ATTENTION, MLP = ("attention_block", True), ("mlp_block", True)
NO_ATTENTION, NO_MLP = ("attention_block", False), ("mlp_block", False)
BOTH, NONE = [ATTENTION, MLP], [NO_ATTENTION, NO_MLP]


FEW, MANY = {"batch": 2, "nodes": 3, "beside": 9}, {"batch": 2, "nodes": 64}


@pytest.mark.matrix
@DTYPES
@pytest.mark.parametrize(
    "changed, sizes",
    [
        ({}, {"batch": 1, "nodes": 1}),
        ({}, {"batch": 3, "nodes": 7}),
        ({}, {"batch": 1, "nodes": 1, "beside": 70}),
        ({}, FEW),
        ({}, MANY),
        *itertools.product(
            [
                {"num_key_value_heads": 4},
                {"num_attention_heads": 8, "num_key_value_heads": 1},
                {"head_dim": 64, "hidden_size": 80, "intermediate_size": 128},
            ],
            [FEW, MANY],
        ),
    ],
    ids=str,
)
def test_a_layer_is_that_of_the_reference(dtype, changed, sizes, getkey, monkeypatch, set_operations):
    config = dataclasses.replace(CONFIG, **changed)
    layer, params = laid_out(config, dtype, getkey())
    keys = [getkey() for _ in range(5)]
    taken = watched(monkeypatch)
    made = applied(layer, params, config, keys, **sizes)
    assert taken == BOTH
    by_reference(set_operations)
    wanted = applied(layer, params, config, keys, **sizes)
    # in bfloat16 numbers are rounded between two products, where a last bit may go either way
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 if dtype == "float32" else 0.1)
        assert jnp.abs(one - other).mean() < (1e-6 if dtype == "float32" else 2e-3) * (jnp.abs(other).mean() + 1)


@pytest.mark.matrix
@DTYPES
def test_a_layer_without_a_norm_before_it(dtype, getkey, monkeypatch, set_operations):
    layer, params = laid_out(CONFIG, dtype, getkey(), input_norm=False)
    keys = [getkey() for _ in range(5)]
    taken = watched(monkeypatch)
    made = applied(layer, params, CONFIG, keys)
    assert taken == BOTH
    by_reference(set_operations)
    for one, other in zip(made, applied(layer, params, CONFIG, keys), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 if dtype == "float32" else 0.1)


@pytest.mark.matrix
@DTYPES
def test_a_token_has_the_same_bits_in_any_batch_and_tree(dtype, getkey):
    """Also where threads of XLA's pool take part, which they do with many rows."""
    config = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=768)
    layer, params = laid_out(config, dtype, getkey())
    keys = [getkey() for _ in range(5)]
    k, v = (jax.random.normal(key, (4, 2, SLOTS, 32)) for key in keys[:2])
    x, length = jax.random.normal(keys[2], (4, 40, 256)), jnp.array([99, 0, 64, 3], jnp.int32)
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((40, 40), bool)), (4, 40, 40))

    def run(rows, nodes):
        cache = Cache(layers=(KVState(k[rows], v[rows]),), length=length[rows], rope_length=length[rows])
        positions = cache.length[:, None] + jnp.arange(nodes)[None]
        sight = attention_inputs(config, positions, causal[rows][:, :nodes, :nodes], cache, positions)
        fresh = x[rows][:, :nodes]
        return jax.jit(lambda x: layer.apply({"params": params}, x, sight, (k[rows], v[rows]), None))(fresh)

    whole, (keys_, values) = run(np.arange(4), 40)
    for rows, nodes in ((np.array([2]), 40), (np.array([1, 3]), 6), (np.array([0]), 1)):
        out, own = run(rows, nodes)
        np.testing.assert_array_equal(out, whole[rows][:, :nodes])
        for one, other in zip(own, (keys_, values), strict=True):
            np.testing.assert_array_equal(one, other[rows][:, :, :nodes])


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_what_nobody_reads_is_not_computed(count, getkey):
    """Of a single request; the others' bits are as before."""
    layer, params = laid_out(CONFIG, "bfloat16", getkey())
    k, v, x = (jax.random.normal(getkey(), shape) for shape in (*[(1, 2, SLOTS, 32)] * 2, (1, 9, CONFIG.hidden_size)))
    length = jnp.array([70], jnp.int32)
    cache = Cache(layers=(KVState(k, v),), length=length, rope_length=length)
    causal, steps = jnp.tril(jnp.ones((9, 9), bool))[None], jnp.arange(9)[None]

    def run(positions):
        sight = attention_inputs(CONFIG, positions, causal, cache, positions)
        out, own = jax.jit(lambda x: layer.apply({"params": params}, x, sight, (k, v), None))(x)
        return [out[0], *(part[0].swapaxes(0, 1) for part in own)]

    whole, part = run(70 + steps), run(jnp.where(steps < count, 70 + steps, PADDING_POSITION))
    for one, other in zip(part, whole, strict=True):
        np.testing.assert_array_equal(one[:count], other[:count])
        assert not one[count:].any()


def test_many_callers_at_a_time_each_get_their_own(getkey):
    """More than there are threads, which go from one's work to another's, and seats for some of them."""
    config = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=768)
    layer, params = laid_out(config, "bfloat16", getkey())
    calls = [[getkey() for _ in range(5)] for _ in range(4)]
    wanted = [applied(layer, params, config, keys, nodes=20) for keys in calls]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda keys: applied(layer, params, config, keys, nodes=20), 10 * calls))
    for index, parts in enumerate(made):
        for one, other in zip(parts, wanted[index % 4], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changed, left",
    [
        ({"attention_bias": True}, [NO_ATTENTION, MLP]),
        ({"qkv_bias": True}, [NO_ATTENTION, MLP]),
        ({"qk_norm": True}, [NO_ATTENTION, MLP]),
        ({"mlp_bias": True}, [ATTENTION, NO_MLP]),
        ({"head_dim": 48}, [NO_ATTENTION, MLP]),
        ({"intermediate_size": 80}, [ATTENTION, NO_MLP]),
        ({"hidden_size": 72}, NONE),
        ({"sliding_window": 50}, [NO_ATTENTION, MLP]),
        ({"sinks": True}, [NO_ATTENTION, MLP]),
        ({"norms": "after"}, NONE),
        ({"norms": "around"}, NONE),
        ({"norm_plus_one": True}, NONE),
        ({"residual_multiplier": 0.5}, NONE),
        ({"activation": "gelu_tanh"}, [ATTENTION, NO_MLP]),
        ({"attn_logit_softcapping": 2.0}, [NO_ATTENTION, MLP]),
        ({"qk_norm": True, "qk_norm_over": "projection"}, [NO_ATTENTION, MLP]),
        ({"rope": Rope(theta=1e4, partial_rotary_factor=0.5)}, [NO_ATTENTION, MLP]),
        ({"rope": Rope(theta=1e4, interleaved=True)}, [NO_ATTENTION, MLP]),
        ({"rope": Rope(theta=1e4, query_beta=0.1, original_max_position_embeddings=8)}, [NO_ATTENTION, MLP]),
        ({"no_rope_layers": (0,)}, [ATTENTION, MLP]),
        ({"attention_multiplier": 0.3}, [ATTENTION, MLP]),
    ],
    ids=str,
)
def test_what_it_is_not_made_for_is_left_to_the_reference(changed, left, getkey, monkeypatch, set_operations):
    config = dataclasses.replace(CONFIG, **changed)
    layer, params = laid_out(config, "float32", getkey())
    keys = [getkey() for _ in range(5)]
    taken = watched(monkeypatch)
    made = applied(layer, params, config, keys)
    assert taken == left
    by_reference(set_operations)
    for one, other in zip(made, applied(layer, params, config, keys), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_experts_are_left_to_the_reference(getkey, monkeypatch):
    experts = Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    config = dataclasses.replace(CONFIG, experts=experts)
    layer, params = laid_out(config, "float32", getkey(), sparse=True)
    taken = watched(monkeypatch)
    applied(layer, params, config, [getkey() for _ in range(5)])
    assert taken == [ATTENTION]


def test_rounded_weights_are_left_to_the_reference(getkey, monkeypatch):
    layer, params = laid_out(CONFIG, "float32", getkey())
    stored = layout.for_files(params)
    rounded = quantize(stored["self_attn"]["o_proj"].pop("weight"), QuantType(8), jnp.float32)
    stored["self_attn"]["o_proj"]["weight"] = rounded
    taken = watched(monkeypatch)
    applied(layer, layout.for_decoding(stored, CONFIG.head_dim), CONFIG, [getkey() for _ in range(5)])
    assert taken == [NO_ATTENTION, MLP]


def test_another_attention_that_is_asked_for_is_used(getkey, monkeypatch):
    monkeypatch.setenv(VARIABLE, "tree_attention:xla")
    layer, params = laid_out(CONFIG, "float32", getkey())
    taken = watched(monkeypatch)
    applied(layer, params, CONFIG, [getkey() for _ in range(5)])
    assert taken == [NO_ATTENTION, MLP]


def test_a_layer_without_a_cache_is_left_to_the_reference(getkey, monkeypatch):
    layer, params = laid_out(CONFIG, "float32", getkey())
    x = jax.random.normal(getkey(), (1, 1, CONFIG.hidden_size))
    sight, cache = one_slot(CONFIG, jnp.float32)
    taken = watched(monkeypatch)
    layer.apply({"params": params}, x, sight, (cache.k[0], cache.v[0]), None)
    assert taken == [NO_ATTENTION, MLP]
