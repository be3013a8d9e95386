"""Layers that attend to keys and values of earlier ones, and whose heads and inputs are their own (Gemma 4)."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import ByLayer, Rope
from eagle_jax.inspection.plan import plan_of_configs
from eagle_jax.models.cache import KVState, NoState
from eagle_jax.models.lm import LM
from eagle_jax.models.rope import frequencies
from eagle_jax.sharding import sharding_of, with_repeated_kv_heads
from eagle_jax.testing import TINY

CONFIG = dataclasses.replace(
    TINY,
    num_hidden_layers=6,
    norms="around",
    qk_norm=True,
    v_norm=True,
    attention_multiplier=1.0,
    sliding_window=3,
    full_attention_layers=(1, 3, 5),
    rope=Rope(theta=1e4, kind="proportional", partial_rotary_factor=0.25),
    local_rope=Rope(theta=1e3),
    by_layer=ByLayer(
        head_dim=16,
        num_key_value_heads=1,
        keys_as_values=True,
        num_kv_shared_layers=2,
        input_size=4,
        input_vocab_size=61,
    ),
    layout="gemma4",
)


def by_layer(**changes):
    return dataclasses.replace(CONFIG.by_layer, **changes)


def test_whose_keys_and_values_are_read():
    """Layers     0 w   1   2 w   3  |  4 w   5      w has a window
    read those of 0     1   2     3  |  2     3
    """
    assert [CONFIG.kv_layer(i) for i in range(6)] == [0, 1, 2, 3, 2, 3]
    assert [CONFIG.kv_of(i) for i in range(6)] == ["both", "keys", "both", "keys", "none", "none"]
    assert CONFIG.head_dims == (8, 16, 8, 16, 8, 16)


def test_the_cache_has_nothing_for_layers_that_share():
    cache = LM.init(CONFIG, jax.random.key(0)).empty_cache(2, 8)
    assert [type(layer) for layer in cache.layers] == [KVState] * 4 + [NoState] * 2
    assert [layer.k.shape for layer in cache.kv] == [(2, 2, 8, 8), (2, 1, 8, 16)] * 2
    assert not jax.tree.leaves(cache.layers[4:])


def test_planned_bytes_are_those_of_the_arrays():
    plan = plan_of_configs(CONFIG, None, {"data": 1, "model": 1}, 3, 8, 5, jnp.float32)
    lm = LM.init(CONFIG, jax.random.key(0))
    cache = lm.empty_cache(3, 8)
    assert plan.target == sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))
    assert plan.cache == sum(leaf.nbytes for leaf in jax.tree.leaves(cache))


def test_levels_of_a_tree_read_one_after_the_other():
    """As a draft model reads them: rows of earlier levels are given, and layers that share read their layer's."""
    lm, tokens = LM.init(CONFIG, jax.random.key(1)), jnp.array([[5, 9, 2, 33, 7]], jnp.int32)
    expected = lm.causal(tokens).hidden
    cache, above, kv = lm.empty_cache(1, 8), jnp.zeros((1, 0), jnp.int32), ()
    for i in range(tokens.shape[1]):
        position = jnp.full((1, 1), i, jnp.int32)
        out = lm.forward(tokens[:, i : i + 1], position, jnp.ones((1, 1, i + 1), bool), cache, (), kv, above)
        np.testing.assert_allclose(out.hidden[:, 0], expected[:, i], atol=2e-5)
        assert out.kv[4] == out.kv[5] == ()
        both = zip(kv or out.kv, out.kv, strict=True)
        kv = out.kv if not kv else jax.tree.map(lambda *rows: jnp.concatenate(rows, axis=2), *map(tuple, zip(*both)))
        above = jnp.concatenate([above, position], axis=1)


def test_the_first_pairs_of_each_half_are_turned():
    rope = Rope(theta=100.0, kind="proportional", partial_rotary_factor=0.5, factor=2.0)
    np.testing.assert_allclose(frequencies(rope, 8), [0.5, 0.5 * 100 ** (-2 / 8), 0, 0])


def test_meshes_divide_every_kind_of_layer():
    wide = with_repeated_kv_heads(CONFIG, {"data": 1, "model": 4})
    assert (wide.num_key_value_heads, wide.by_layer.num_key_value_heads) == (4, 4)
    assert with_repeated_kv_heads(wide, {"data": 1, "model": 4}) == wide
    with pytest.raises(ValueError, match="model:4 neither divides the target's 6 key/value heads"):
        odd = dataclasses.replace(CONFIG, num_attention_heads=12, by_layer=by_layer(num_key_value_heads=6))
        sharding_of("model:4", odd)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by_layer": lambda: by_layer(num_kv_shared_layers=6)}, "num_kv_shared_layers=6 of 6 layers; expected each"),
        ({"by_layer": lambda: by_layer(num_kv_shared_layers=5)}, "num_kv_shared_layers=5 of 6 layers; expected each"),
        ({"by_layer": lambda: by_layer(num_key_value_heads=3)}, "is not a multiple of num_key_value_heads=3"),
        ({"by_layer": lambda: by_layer(head_dim=7)}, "head_dim=7 of layers without a window is odd"),
        ({"by_layer": lambda: by_layer(input_size=-1)}, "input_size=-1 of layers"),
        ({"by_layer": lambda: by_layer(input_vocab_size=0)}, "embeddings by layer of 0 tokens; expected at least 1"),
    ],
)
def test_what_cannot_be(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(CONFIG, **{name: make() for name, make in changes.items()})
