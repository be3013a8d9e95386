"""Greedy draws without the logits of all nodes: 960 rows of 128,256 float32 numbers are 492 MB, and a step needs only
the places of their 960 maxima.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.models.target import Target
from eagle_jax.ops import argmax
from eagle_jax.sharding.tracing import is_sharded

# Bytes of logits at a time: 261 rows of 128,256, more than an H200 needs to be busy while it reads weights.
MAX_LOGITS_BYTES = 2**27


def is_large(target: Target, hidden: Float[Array, "b n h"]) -> bool:
    """Returns whether the logits of these rows are computed in parts; sharded logits are in parts already."""
    return not is_sharded() and 4 * hidden.shape[0] * hidden.shape[1] * target.config.vocab_size > MAX_LOGITS_BYTES


def greedy_draws(target: Target, hidden: Float[Array, "b n h"]) -> Int[Array, "b n"]:
    """Computes `argmax(target.logits(hidden))` in parts of some rows."""
    batch, nodes, size = hidden.shape
    max_rows = max(MAX_LOGITS_BYTES // (4 * target.config.vocab_size), 1)
    parts = -(-batch * nodes // max_rows)
    rows = -(-batch * nodes // parts)
    padded = jnp.pad(hidden.reshape(-1, size), ((0, parts * rows - batch * nodes), (0, 0)))
    draws = jax.lax.map(lambda part: argmax(target.logits(part[None]))[0], padded.reshape(parts, rows, size))
    return draws.reshape(-1)[: batch * nodes].reshape(batch, nodes)
