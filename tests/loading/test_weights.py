"""Other weights in a compiled model: the texts are the new weights', and no program is compiled for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax.api import Model
from eagle_jax.converters import quantize, save_head, save_target
from eagle_jax.converters.llama import rules
from eagle_jax.converters.names import tensors
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.scheduling import programs
from eagle_jax.sharding import sharding_of
from eagle_jax.testing import TINY, synthetic_head3, synthetic_pair

CONFIG = dataclasses.replace(TINY, vocab_size=64, num_hidden_layers=1, max_position_embeddings=96)
PROMPTS = [[3, 14, 15], [9, 26, 5, 35, 8]]
ASKED = dict(max_new_tokens=12, tree=(4, 1, 2), temperature=0.8, seed=3)


def pair(seed: int) -> tuple[LM, object]:
    return synthetic_pair(CONFIG, seed=seed, strength=0.6)


def loaded(target, head, mesh=None) -> Model:
    """What `load` makes of weights as they are stored; the given ones stay as they are."""
    sharding = sharding_of(mesh, target.config)

    def laid(model, rules, head_dim):
        copy = jax.tree.map(lambda leaf: leaf, model.params)
        params = layout.for_decoding(copy, head_dim, sharded=sharding is not None)
        placed = dataclasses.replace(model, params=params)
        return placed if sharding is None else sharding.put(placed, rules)

    target_rules, head_rules = (None, None) if sharding is None else (sharding.target, sharding.head)
    ready = laid(target, target_rules, CONFIG.head_dim), laid(head, head_rules, CONFIG.head_dim)
    return Model(*ready, tokenizer=None, stop_ids=(), context=96, sharding=sharding)


def by_names(params) -> dict[str, np.ndarray]:
    """As a checkpoint has them."""
    return dict(tensors(rules(CONFIG), params))


def same(one, other) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def texts(model: Model, **options) -> list[list[int]]:
    return [result.token_ids for result in eagle_jax.generate(model, PROMPTS, **ASKED | options)]


@pytest.mark.matrix
@pytest.mark.parametrize("mesh", [None, "data:2,model:2"])
def test_texts_are_the_new_weights_and_nothing_is_compiled(mesh):
    (old_target, old_head), (target, head) = pair(0), pair(1)
    model, fresh = loaded(old_target, old_head, mesh), loaded(target, head, mesh)
    before, expected = texts(model), texts(fresh)
    assert before != expected
    count = programs.compiled()

    changed = eagle_jax.with_weights(model, target=target.params, head=head.params)
    assert same(changed.target, fresh.target)
    assert texts(changed) == expected
    assert texts(eagle_jax.with_weights(model, target=jax.tree.map(np.asarray, target.params))) == expected
    named = by_names(target.params) | {"model.rotary_emb.inv_freq": np.zeros(4)}
    assert "model.layers.0.self_attn.q_proj.weight" in named
    assert texts(eagle_jax.with_weights(model, target=named)) == texts(eagle_jax.with_weights(model, target=target))
    assert texts(model) == before, "the old model is as it was"
    assert programs.compiled() == count


def test_what_is_taken_out_can_be_put_back():
    target, head = pair(0)
    model = loaded(target, head)
    weights = eagle_jax.weights_of(model)
    for stored, own in ((weights.target, target.params), (weights.head, head.params)):
        assert same(stored, own)
    again = eagle_jax.with_weights(model, target=weights.target, head=weights.head)
    assert same(again.target, model.target)


@pytest.mark.parametrize(("mesh", "backend"), [(None, "cpu"), (None, "gpu"), ("data:2,model:2", "cpu")])
def test_what_is_taken_out_may_be_donated(mesh, backend, monkeypatch):
    """As on accelerators, too, where the model's matrices are turned as those that are taken out."""
    with monkeypatch.context() as laying:
        laying.setattr(jax, "default_backend", lambda: backend)
        model = loaded(*pair(0), mesh)
    kept = jax.tree.map(np.array, (model.target.params, model.head.params))
    weights = eagle_jax.weights_of(model)
    one, other = (params["embed_tokens"]["embedding"] for params in (weights.target, model.target.params))
    assert one.sharding == other.sharding
    for leaf in jax.tree.leaves((weights.target, weights.head)):
        leaf.block_until_ready()
        jax.jit(lambda x: 0 * x, donate_argnums=0)(leaf)
        assert leaf.is_deleted()
    assert same((model.target.params, model.head.params), kept)


def test_weights_are_cast_to_the_models_dtype():
    target, head = pair(0)
    model = loaded(target, head)
    halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), target.params)
    changed = eagle_jax.with_weights(model, target=halves)
    assert {leaf.dtype for leaf in jax.tree.leaves(changed.target)} == {jnp.dtype("float32")}


def test_a_rounded_model_rounds_what_it_gets(tmp_path):
    (old, _), (new, _head) = pair(0), pair(1)
    for name, target in (("old", old), ("new", new)):
        save_target(target, tmp_path / name)
    model = eagle_jax.load(tmp_path / "old", quantize="int8")
    expected = eagle_jax.load(tmp_path / "new", quantize="int8")
    quantize(tmp_path / "new", tmp_path / "rounded", "int8")
    for given in (new.params, eagle_jax.weights_of(expected).target, tmp_path / "rounded"):
        changed = eagle_jax.with_weights(model, target=given)
        assert same(changed.target, expected.target)
    floats = eagle_jax.load(tmp_path / "old")
    changed = eagle_jax.with_weights(floats, target=tmp_path / "rounded")
    assert same(eagle_jax.weights_of(changed).target, eagle_jax.weights_of(expected).target)


def test_key_and_value_heads_are_kept_as_often_as_the_mesh_needs_them(tmp_path):
    (old, _), (new, _head) = pair(0), pair(1)
    for name, target in (("old", old), ("new", new)):
        save_target(target, tmp_path / name)
    model = eagle_jax.load(tmp_path / "old", mesh="model:4")
    expected = eagle_jax.load(tmp_path / "new", mesh="model:4")
    for given in (new.params, new, tmp_path / "new"):
        changed = eagle_jax.with_weights(model, target=given)
        assert same(changed.target, expected.target)


def test_a_head_from_a_folder_or_a_head(tmp_path):
    (target, old), (_, new) = pair(0), pair(1)
    model = loaded(target, old)
    save_head(new, tmp_path / "head", target=target)
    for given in (tmp_path / "head", new):
        changed = eagle_jax.with_weights(model, head=given)
        assert same(changed.head, loaded(target, new).head)


def without(params: dict, name: str) -> dict:
    return {key: value for key, value in params.items() if key != name}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: without(p, "norm"), "the new target weights lack norm/scale"),
        (lambda p: p | {"extra": {"weight": np.zeros(3)}}, "have extra/weight, unknown to the model"),
        (lambda p: p | {"norm": {"scale": np.zeros(3)}}, r"norm/scale has shape \(3,\); expected \(32,\)"),
        (
            lambda p: {"model.norm.weight": np.zeros(32)},
            r"the weights lack lm_head.weight, .* and \d+ more; expected all of",
        ),
        (
            lambda p: by_names(p) | {"a.b": np.zeros(1)},
            r"the weights have a.b, unknown to the target; expected a checkpoint",
        ),
        (lambda p: by_names(p) | {"lm_head.weight": 1}, r"lm_head.weight is a builtins.int; expected arrays of numpy"),
        (lambda p: 5, "target is a int; expected parameters by name"),
        (lambda p: LM(p, dataclasses.replace(CONFIG, rms_norm_eps=0.5)), "rms_norm_eps=0.5 where the present one has"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, sentence, api):
    target, head = pair(0)
    with pytest.raises(ValueError, match=sentence):
        api.with_weights(loaded(target, head), target=change(target.params))


def test_a_head_that_does_not_fit_is_refused(api):
    target, head = pair(0)
    with pytest.raises(ValueError, match="a head of kind Head3 for one of kind Head"):
        api.with_weights(loaded(target, head), head=synthetic_head3(target))
    with pytest.raises(ValueError, match="loaded without one"):
        api.with_weights(dataclasses.replace(loaded(target, head), head=None), head=head.params)
