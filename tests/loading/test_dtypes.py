"""Dtypes of what is loaded: asked for, stored, and what the device multiplies."""

import dataclasses
import types
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from speller import SPELLED, SPELLER, asked

from eagle_jax import ops
from eagle_jax.api import generate, load
from eagle_jax.converters import save_head
from eagle_jax.loading import dtypes, load_model
from eagle_jax.models import draft_head


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", jnp.bfloat16, None])
def test_dtype(folders, dtype, monkeypatch):
    monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda: False)
    model = load(*folders, dtype=dtype)
    expected = jnp.dtype("float32" if dtype is None else dtype)
    assert model.target.dtype == model.head.dtype == expected


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("dtype", "draft_dtype", "expected"),
    [
        ("float32", None, "bfloat16"),
        ("float32", "float32", "float32"),
        ("float32", jnp.float16, "float16"),
        ("bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float16", None, "float16"),
    ],
)
def test_what_drafts_may_have_a_dtype_of_its_own(folders, dtype, draft_dtype, expected, monkeypatch):
    """Beside float32 it is bfloat16 where the CPU multiplies that: half as much to read, and the same answers."""
    monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda: True)
    model = load(*folders, dtype=dtype, draft_dtype=draft_dtype, draft=folders[0])
    assert model.target.dtype == dtype
    assert model.head.dtype == model.draft.dtype == expected
    assert load_model.with_head(model, folders[1], draft_dtype=draft_dtype).head.dtype == expected
    for drafter in ("none", "eagle", "draft-model"):
        assert generate(model, asked("?"), drafter=drafter).text == SPELLED


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "draft_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_two_dtypes_never_meet_by_chance(folders, dtype, draft_dtype, monkeypatch, set_operations):
    """As on accelerators, where activations have the dtype of the weights: nothing is promoted unasked."""
    set_operations(EAGLE_JAX_OPS="xla")
    for module in (ops, draft_head):
        monkeypatch.setattr(module, "activation_dtype", jnp.dtype)
    with jax.numpy_dtype_promotion("strict"):
        model = load(*folders, dtype=dtype, draft_dtype=draft_dtype)
        for tree in ((8, 3, 2), "eagle1", (4, 0.5)):
            assert generate(model, asked("?"), tree=tree).text == SPELLED


def test_an_unknown_dtype_of_what_drafts_is_refused(folders):
    with pytest.raises(ValueError, match="draft_dtype='float8' is not known; expected one of float32"):
        load(*folders, draft_dtype="float8")


def test_the_dtype_is_known_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda: False)
    assert [dtypes.dtype_name(dtype) for dtype in (None, "bfloat16")] == ["float32", "bfloat16"]
    monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda: True)
    assert dtypes.dtype_name() is None


@pytest.mark.parametrize(
    ("platform", "kind", "capability", "expected"),
    [
        ("gpu", "Tesla T4", "7.5", jnp.float16),
        ("gpu", "Tesla V100-SXM2-16GB", "7.0", jnp.float16),
        ("gpu", "NVIDIA L4", "8.9", None),
        ("gpu", "NVIDIA A100-SXM4-40GB", "8.0", None),
        ("gpu", "NVIDIA H200", "9.0", None),
        ("gpu", "NVIDIA B200", "10.0", None),
        ("gpu", "AMD Instinct MI300X", "gfx942", None),
        ("tpu", "TPU v5 lite", None, None),
        ("tpu", "TPU v6 lite", None, None),
    ],
)
def test_the_stored_dtype_is_kept_where_it_can_be_multiplied(platform, kind, capability, expected, monkeypatch):
    """Colab's devices and others: a T4 has no bfloat16, TPUs have no float16."""
    more = {} if capability is None else {"compute_capability": capability}
    device = types.SimpleNamespace(platform=platform, device_kind=kind, **more)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert dtypes.dtype_of(None) == expected
    assert dtypes.dtype_of("bfloat16") == jnp.bfloat16, "what is asked for is taken"


def test_a_head_of_another_dtype_takes_the_targets(folders, tmp_path):
    """Published heads are in float16 beside bfloat16 targets, and TPUs have no float16."""
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), SPELLER.head.params)
    save_head(dataclasses.replace(SPELLER.head, params=narrow), tmp_path)
    model = load(folders[0], tmp_path, dtype="bfloat16")
    assert model.target.dtype == model.head.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float8", "int8", "", jnp.int8, 5, "nonsense"])
def test_unknown_dtypes(api: ModuleType, folders, dtype):
    with pytest.raises(
        (ValueError, TypeError), match="^dtype=.* is not known; expected one of float32, bfloat16, float16$"
    ):
        api.load(*folders, dtype=dtype)
