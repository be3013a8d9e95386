"""The rotation of rotary position embeddings, and its cosines and sines."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.types import CosSin
from eagle_jax.sharding.tracing import is_sharded


def rotate(x: Float[Array, "b heads n c"], cos_sin: CosSin) -> Float[Array, "b heads n c"]:
    """Rotates the pairs (x_i, x_{i + c/2}): the half-split order of HuggingFace checkpoints."""
    cos, sin = (part[:, None] for part in cos_sin)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def computed_once(make: Callable[[], CosSin], positions: Int[Array, "b n"]) -> CosSin:
    """The result of `make`, not fused into its consumers.

    XLA:CPU would recompute the sines for every element that they are multiplied with, in every layer. It does not fuse
    into conditionals, while it removes optimization barriers.
    """
    traced = isinstance(positions, jax.core.Tracer)  # nothing is fused elsewhere
    if not traced or jax.default_backend() != "cpu" or is_sharded() or 0 in positions.shape:
        return make()
    zeros = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(make))
    return jax.lax.cond(positions[0, 0] > -(2**30), make, lambda: zeros)  # always true, but XLA cannot know
