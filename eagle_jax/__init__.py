"""Lossless speculative decoding with EAGLE draft heads in JAX."""

from eagle_jax.platform import guard_cpu_reductions

__version__ = "0.1.0"

guard_cpu_reductions()
