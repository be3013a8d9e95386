"""Top-k and top-p without sorting."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, UInt32


def within_top_weight(
    values: Float[Array, "b n v"], weights: Float[Array, "b n v"], limit: Float[Array, "b #n"]
) -> Bool[Array, "b n v"]:
    """Marks each value whose strictly larger values have weights that sum to less than `limit`.

    Top-k has weights of one and a limit of k; top-p has probabilities and a limit of p. The bits of the lowest marked
    float32 value are found from the highest on, by masked sums: 32 of them, one after the other, which for 60 x 32,000
    values on two CPU cores is fifteen times faster than a sort. A GPU finds four bits at a time by 15 sums: arithmetic
    is cheap there, and each pass costs launches.
    """
    keys = _ordered(values)
    width = 4 if jax.default_backend() == "gpu" else 1
    digits = jnp.arange(1, 2**width, dtype=jnp.uint32)[None, None]

    def add_digit(i: Array, found: UInt32[Array, "b n"]) -> UInt32[Array, "b n"]:
        shift = jnp.uint32(32 - width) - jnp.uint32(width) * i.astype(jnp.uint32)
        candidates = _as_key(found[..., None] + (digits << shift))
        from_there = keys[:, :, None] >= candidates[..., None]
        weight = jnp.sum(jnp.where(from_there, weights[:, :, None], 0.0), axis=-1)
        return found + (jnp.sum(weight >= limit[..., None], axis=-1, dtype=jnp.uint32) << shift)

    threshold = lax.fori_loop(0, 32 // width, add_digit, jnp.zeros(values.shape[:2], jnp.uint32))
    return keys >= _as_key(threshold)[:, :, None]


def _as_key(number: UInt32[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Returns the key that so many keys are below."""
    return lax.bitcast_convert_type(number ^ jnp.uint32(2**31), jnp.int32)


def _ordered(values: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Returns integers that compare as the float32 `values` do: negative numbers have the lower 31 bits flipped."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
