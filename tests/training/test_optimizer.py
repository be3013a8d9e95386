"""The norm of gradients, and clipping by it."""

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from eagle_jax.training.optimizer import clip_by_norm, global_norm
from eagle_jax.workarounds import exact_reduction_options

ONES = (4096, 8192)  # 2**25 of them; float32 counts to 2**24


def compiled(function):
    return jax.jit(function, compiler_options=exact_reduction_options())


def test_the_norm_of_a_large_matrix():
    assert compiled(global_norm)({"weight": jnp.ones(ONES)}) == pytest.approx(2**12.5, rel=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others add in another order")
@pytest.mark.skipif(jaxlib.version.__version_info__ >= (0, 11), reason="so do later jaxlibs")
def test_one_sum_over_it_would_be_wrong():
    squares = compiled(lambda g: jnp.sum(g**2))(jnp.ones(ONES))
    assert abs(float(squares) / 2**25 - 1) > 1e-3


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_gradients_are_clipped_together(limit):
    gradients = {"weight": jnp.asarray([[3.0, 0.0], [0.0, 4.0]]), "scale": jnp.asarray([12.0]), "none": jnp.zeros(2)}
    share = min(1.0, limit / 13)
    for made, given in zip(jax.tree.leaves(clip_by_norm(gradients, limit)), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(made, given * share, rtol=1e-6)


def test_no_gradient_stays_none():
    assert not np.any(clip_by_norm({"weight": jnp.zeros((2, 2))}, 1.0)["weight"])
