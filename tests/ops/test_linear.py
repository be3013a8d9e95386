"""Products are those of numpy, and have the gradients that autodiff would give them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.ops.linear import FEW_ROWS, matmul, reference


@pytest.mark.parametrize("count", [1, 2, FEW_ROWS[0], FEW_ROWS[0] + 1, FEW_ROWS[-1], FEW_ROWS[-1] + 1])
@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (2, 24, 16)], ids=["tall", "wide", "in parts"])
def test_a_product_of_few_or_many_rows(shape, count, getkey):
    rows, weight = jax.random.normal(getkey(), (count, shape[-1])), jax.random.normal(getkey(), shape)
    made = jax.jit(matmul)(rows, weight)
    np.testing.assert_allclose(made, np.einsum("ni,...i->n...", rows, weight), atol=1e-5)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (2, 24, 16)], ids=["tall", "wide", "in parts"])
def test_the_gradients_of_a_product(shape, getkey):
    rows, weight = jax.random.normal(getkey(), (2, 5, shape[-1])), jax.random.normal(getkey(), shape)
    towards = jax.random.normal(getkey(), (2, 5, *shape[:-1]))

    def plain(rows, weight):
        return jnp.einsum("bni,...i->bn...", rows, weight, precision="highest")

    (made, back), (wanted, wanted_back) = (jax.vjp(product, rows, weight) for product in (matmul, plain))
    assert jnp.allclose(made, wanted, atol=1e-5)
    for gradient, wanted_gradient in zip(back(towards), wanted_back(towards), strict=True):
        assert gradient.shape == wanted_gradient.shape
        assert jnp.allclose(gradient, wanted_gradient, atol=1e-5)


@pytest.mark.parametrize(
    "platform, capability, dtype, rows",
    [
        ("cpu", None, "bfloat16", 2),
        ("gpu", "7.5", "float16", 2),
        ("cpu", None, "float16", 1),
        ("gpu", "7.5", "bfloat16", 1),
        ("gpu", "8.0", "float16", 1),
    ],
)
def test_a_single_row_that_is_slow_alone_is_multiplied_twice(platform, capability, dtype, rows, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(compute_capability=capability)])
    row, weight = jnp.ones((1, 16), dtype), jnp.ones((8, 16), dtype)
    program = jax.make_jaxpr(lambda row, weight: reference(row, weight, jnp.int32(1)))(row, weight)
    read = [equation.invars[0].aval.shape[0] for equation in program.eqns if equation.primitive.name == "dot_general"]
    assert read == [rows] and program.out_avals[0].shape == (1, 8)
