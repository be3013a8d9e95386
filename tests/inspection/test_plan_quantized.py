"""A plan counts weights as the files hold them, unless floats or another width are asked for."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from eagle_jax.converters import config_to_hf, save_target
from eagle_jax.inspection.plan import plan, target_shapes
from eagle_jax.models.quant import quantize_params, scheme_of
from eagle_jax.testing import synthetic_pair
from tests.models.quantized_targets import CONFIG
from tests.ops.quantized_weights import PUBLISHED

ASKED = dict(mesh="model:1", slots=64, nodes=1)
UNTIED = dataclasses.replace(CONFIG, tie_word_embeddings=False)


def test_a_folder_is_counted_as_it_is(tmp_path):
    target, _ = synthetic_pair(UNTIED)
    save_target(target, tmp_path / "floats")
    params = jax.tree.map(lambda leaf: leaf, target.params)
    save_target(dataclasses.replace(target, params=quantize_params(params, scheme_of("int4/int4"))), tmp_path / "int4")
    floats, kept, expanded = (
        plan(tmp_path / name, quantize=quantize, **ASKED).target
        for name, quantize in (("floats", None), ("int4", None), ("int4", "none"))
    )
    assert kept == plan(tmp_path / "floats", quantize="int4/int4", **ASKED).target
    assert expanded == floats and kept < 0.45 * floats  # the table of embeddings stays bfloat16
    with pytest.raises(ValueError, match="quantized to 4 bits already, and 8 were asked for"):
        plan(tmp_path / "int4", quantize="int8", **ASKED)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps(config_to_hf(UNTIED)))
    assert plan(tmp_path / "config", **ASKED).target == floats


@pytest.mark.parametrize("kind", PUBLISHED)
def test_bytes_of_every_kind(kind):
    quant_type = PUBLISHED[kind][0]
    path = "layers_0/mlp/down_proj/weight"
    whole, held = (target_shapes(UNTIED, jnp.bfloat16, None, stored) for stored in ((), ((path, quant_type),)))
    size, groups = 128 * 256, 128 * quant_type.groups(256)
    parts = 4 * groups * (1 + quant_type.has_minima) + (4 * 256 if quant_type.is_ordered else 0)

    def weighs(model) -> float:
        return sum(leaf.size * jax.dtypes.itemsize_bits(leaf.dtype) / 8 for leaf in jax.tree.leaves(model.params))

    assert weighs(held) - weighs(whole) == size * quant_type.bits / 8 + parts - 2 * size
