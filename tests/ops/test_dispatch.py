"""Which backend computes an operation, and what happens where it cannot."""

import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import ops
from eagle_jax.ops import dispatch
from eagle_jax.testing import cpu_backend


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch):
    monkeypatch.setattr(dispatch, "_logged", set())
    dispatch._module.cache_clear()
    yield
    dispatch._module.cache_clear()


@pytest.mark.parametrize(
    "value, linear, attention",
    [
        ("", ["cpu"], ["cpu"]),
        ("xla", [], []),
        ("tree_attention:tpu", ["cpu"], ["tpu", "cpu"]),
        ("xla, tree_attention:gpu", [], ["gpu", "cpu"]),
        ("linear:xla", [], ["cpu"]),
    ],
)
def test_the_variable_chooses_for_all_operations_or_for_one(monkeypatch, value, linear, attention):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setitem(dispatch.DEFAULTS, "cpu", "cpu")  # on ARM too
    monkeypatch.setenv(ops.VARIABLE, value)
    assert dispatch.candidates("linear") == linear and dispatch.candidates("tree_attention") == attention


@pytest.mark.parametrize("value", ["metal", "conv:cpu", "linear:metal", "linear:"])
def test_an_unknown_choice_is_refused(monkeypatch, value):
    monkeypatch.setenv(ops.VARIABLE, value)
    with pytest.raises(ValueError, match=f"{ops.VARIABLE}='{value}' has '{value}'; expected a backend"):
        ops.matmul(jnp.ones((1, 4)), jnp.ones((2, 4)))


@pytest.mark.parametrize("asked, level", [("", "INFO"), ("cpu", "WARNING")])
def test_a_backend_that_is_not_there_is_told_once(monkeypatch, caplog, asked, level):
    monkeypatch.setenv(ops.VARIABLE, asked)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setitem(dispatch.DEFAULTS, "cpu", "cpu")  # on ARM too
    monkeypatch.setitem(sys.modules, "eagle_jax.ops.cpu.backend", None)
    with caplog.at_level(logging.INFO, logger="eagle_jax.ops"):
        for _ in range(2):
            made = ops.matmul(jnp.ones((1, 4)), jnp.ones((2, 4)))
    np.testing.assert_array_equal(made, [[4, 4]])
    assert [record.levelname for record in caplog.records] == [level]
    assert caplog.messages[0].startswith("cpu does not compute linear: the backend cannot be imported (")


def test_what_a_backend_lacks_is_the_references(monkeypatch, caplog):
    monkeypatch.setenv(ops.VARIABLE, "xla,rms_norm:tpu")
    norm = ops.Norm(jnp.full(8, 2.0), 0.0)
    np.testing.assert_allclose(ops.rms_norm(jnp.full((1, 8), 3.0), norm), jnp.full((1, 8), 2.0))
    assert "tpu does not compute rms_norm: it has no rms_norm" in caplog.messages


def test_gradients_are_the_references(monkeypatch):
    """An implementation with a wrong value would show in the value, and not in the gradient."""
    if (backend := cpu_backend()) is None:
        pytest.skip("the CPU backend is not used")
    monkeypatch.setenv(ops.VARIABLE, "cpu")
    monkeypatch.setattr(backend, "linear", lambda rows, weight, num_valid: jnp.zeros((rows.shape[0], weight.shape[0])))
    x, weight = jnp.arange(8.0).reshape(2, 4), jnp.ones((3, 4))
    np.testing.assert_array_equal(ops.matmul(x, weight), jnp.zeros((2, 3)))
    gradient = jax.grad(lambda x: ops.matmul(x, weight).sum())(x)
    np.testing.assert_array_equal(gradient, jnp.full((2, 4), 3.0))


def test_settings_are_those_that_are_set(monkeypatch):
    monkeypatch.delenv(ops.VARIABLE, raising=False)
    monkeypatch.delenv(dispatch.ACTIVATIONS, raising=False)
    assert dispatch.environment_settings() == {}
    monkeypatch.setenv(ops.VARIABLE, "xla")
    assert dispatch.environment_settings() == {ops.VARIABLE: "xla"}
