"""The largest numbers of rows over a vocabulary.

Of 60 rows of 32,000 tokens the ten best and their log-probabilities take the CPU backend 0.34 ms and XLA 3.5 ms on two
cores (`benchmarks.kernels.ops top_k`).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax import sharding
from eagle_jax.ops.dispatch import dispatch
from eagle_jax.sharding.tracing import is_spread


def top_k(
    values: Float[Array, "*rows v"], count: int, *, logit_scale: float | None = None
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """The `count` largest of each row, largest first, and where they are; of equal ones the first.

    Args:
        logit_scale: return `log_softmax(logit_scale * values)` of the largest values; a row with nan or infinity has no
            distribution, and -inf throughout. None returns the values; of a row with nan they may be any.
    """
    if is_spread():  # which rows and which part of the vocabulary a device has shows in the axes
        return reference(values, count=count, logit_scale=logit_scale)
    *rows, size = values.shape
    flat = values.reshape(math.prod(rows), size)
    largest, where = dispatch("top_k", reference, flat, count=count, logit_scale=logit_scale)
    return largest.reshape(*rows, count), where.reshape(*rows, count)


def reference(
    values: Float[Array, "*rows v"], *, count: int, logit_scale: float | None
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """By XLA; over several devices only the best of each part of the vocabulary travel."""
    if logit_scale is not None:
        scores = jax.nn.log_softmax(logit_scale * values, axis=-1)
        values = jnp.where(jnp.isnan(scores), -jnp.inf, jnp.minimum(scores, 0.0))
    return sharding.top_k(values, count)


def argmax(values: Float[Array, "*rows v"]) -> Int[Array, "*rows"]:
    """Where each row is largest, first of all; anywhere in a row with nan."""
    return dispatch("argmax", sharding.argmax, jax.lax.stop_gradient(values))
