"""The noise is that of JAX's own function, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.gumbel import gumbel


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
@pytest.mark.parametrize("size", [1, 2, 1000, 49152])
def test_as_jax_draws_it(seed, size):
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 5)
    expected = jax.random.gumbel(key, (size,), jnp.float32, mode="high")
    drawn = jax.jit(gumbel, static_argnums=1)(jax.random.key_data(key), size)
    np.testing.assert_array_equal(drawn, expected)
    assert drawn.dtype == jnp.float32
