"""Families on meshes: what each device holds of sinks, norms over projections, shared experts and biases adds up."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import FAMILIES
from parity_cases import texts
from test_family_parity import TOLERANCE, load, write

from eagle_jax.converters import load_target
from eagle_jax.sharding import sharding_of
from eagle_jax.sharding.tracing import traced_over

# Two kv heads: on four devices along `model` each is kept twice; and the only one of some layers of Gemma 4 four times.
NAMES = ("gpt_oss", "olmo2", "glm4_moe", "phi3", "qwen3_5_moe_text", "deepseek_v3")
NAMES += ("gemma4_text", "gemma4_text with experts")
MESHES = ("data:2,model:2", "model:4")


@pytest.mark.matrix
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_one_device(name: str, mesh: str, tmp_path: pathlib.Path):
    write(tmp_path, name)
    alone, tokens = load(name), texts(FAMILIES[name])
    expected = np.asarray(jax.jit(lambda lm, tokens: lm(tokens)[1])(alone, tokens))
    sharding = sharding_of(mesh, alone.config)
    spread = load_target(tmp_path, sharding=sharding)
    with traced_over(sharding):
        logits = jax.jit(lambda lm, tokens: lm(tokens)[1])(spread, tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
    layer = 1 if spread.config.delta_net is None else 3
    attention = spread.params[f"layers_{layer}"]["self_attn"]
    queries = attention["q_b_proj" if name == "deepseek_v3" else "q_proj"]
    sizes = {leaf.sharding.shard_shape(leaf.shape)[0] for leaf in jax.tree.leaves(queries)}
    assert sizes == {queries["weight"].shape[0] // sharding.sizes["model"]}
    if name == "gpt_oss":
        assert attention["sinks"].sharding.shard_shape((4,)) == (4 // sharding.sizes["model"],)


def test_a_config_is_all_that_differs(tmp_path: pathlib.Path):
    """Negative control of the comparison: another scale of the scores is noticed."""
    write(tmp_path, "granite")
    entries = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(entries | {"attention_multiplier": 0.1}))
    tokens = jnp.asarray(texts(FAMILIES["granite"]))
    one, other = (jax.jit(lambda lm: lm(tokens)[1])(lm) for lm in (load("granite"), load_target(tmp_path)))
    assert jnp.abs(one - other).max() > 100 * TOLERANCE
