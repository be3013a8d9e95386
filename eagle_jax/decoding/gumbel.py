"""Gumbel noise with the bits of `jax.random.gumbel(key, mode="high")`, in a third of its time on a CPU.

They are the bits of `jax_threefry_partitionable=True`, JAX's default, regardless of that flag.

JAX compiles Threefry as a loop there, which writes whole arrays in each round. Here its rounds are unrolled, so XLA
makes one vectorised pass of bits, uniform numbers and logarithms.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA  # of the key schedule (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
MANTISSA = 23  # bits of a float32's fraction


def gumbel(key: UInt32[Array, "2"], size: int) -> Float[Array, "{size}"]:
    """Returns `-log(-log(u))` of uniform `u`, which has 46 random bits where it is small.

    The noise reaches 32 instead of 16, so that tokens rarer than e^-16 keep their probability.

    Args:
        key: words of a Threefry key.
    """
    index = jnp.arange(size, dtype=jnp.uint32)  # no slices of a longer one, which devices would have to exchange
    high, low = (_uniform(_threefry(key, index + jnp.uint32(start))) for start in (0, size))
    refined = high + 2.0**-MANTISSA * low + 2.0 ** -(2 * MANTISSA + 1)
    return -jnp.log(-jnp.log1p(-jnp.where(high >= 0.5, high, refined)))


def _uniform(bits: UInt32[Array, "n"]) -> Float[Array, "n"]:
    """Returns numbers in [0, 1) with the upper bits as their fraction."""
    one_to_two = (bits >> jnp.uint32(32 - MANTISSA)) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(one_to_two, jnp.float32) - 1.0


def _threefry(key: UInt32[Array, "2"], counter: UInt32[Array, "n"]) -> UInt32[Array, "n"]:
    """Returns 32 random bits for each counter: both words of Threefry-2x32 with 20 rounds, XORed."""
    schedule = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY)
    left, right = jnp.broadcast_to(schedule[0], counter.shape), counter + schedule[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << jnp.uint32(bits)) | (right >> jnp.uint32(32 - bits)))
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return left ^ right
