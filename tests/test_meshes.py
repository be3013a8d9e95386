"""Meshes that are asked for, and sizes as they are published."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sharding import CONFIG

from eagle_jax.converters.hub.sizes import HeadSizes, TargetSizes
from eagle_jax.inspection import plan
from eagle_jax.sharding import parse, sharding_of


@pytest.mark.parametrize(
    "mesh, said",
    [
        ("model:3", "model:3 does not divide the target's 4 attention heads; give the model axis one of 1, 2, 4"),
        ("data:4,model:2", "takes 8 devices and there are 4"),
        ("model:0", "has an axis of no devices"),
        ("heads:2", "is no mesh; expected the sizes of its axes"),
        ("data:2,data:2", "is no mesh"),
        (7, "mesh=7 is no mesh"),
        (jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",)), "a mesh with axes ('x',); expected ('data', 'model')"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_sentence(mesh, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        sharding_of(mesh, CONFIG)


def test_auto_takes_all_devices_and_as_many_along_model_as_fit():
    assert sharding_of("auto", CONFIG).sizes == {"data": 1, "model": 4}
    assert sharding_of("auto", dataclasses.replace(CONFIG, intermediate_size=46)).sizes == {"data": 2, "model": 2}
    assert parse("model: 2") == {"data": 1, "model": 2}


@pytest.mark.matrix
@pytest.mark.parametrize("more", [{}, {"qkv_bias": True}, {"qk_norm": True, "tied": True}, {"experts": 2}])
def test_published_sizes_count_what_their_configs_make(more):
    sizes = TargetSizes(layers=8, hidden=16, intermediate=12, heads=4, kv_heads=2, vocab=32, head_dim=4, **more)
    made = plan.target_shapes(sizes.config, jnp.bfloat16).params
    assert sum(leaf.size for leaf in jax.tree.leaves(made)) == sizes.count.total
    for drafted in (None, 20):
        head = HeadSizes(target=sizes, kv_heads=4, drafted=drafted)
        made = plan.head_shapes(head.config, jnp.bfloat16).params
        assert sum(leaf.size for leaf in jax.tree.leaves(made)) == head.count.total
