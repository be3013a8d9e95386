"""The rotation of rotary position embeddings, and its cosines and sines."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.types import CosSin
from eagle_jax.sharding.tracing import is_sharded


def rotate(x: Float[Array, "b heads n c"], cos_sin: CosSin, interleaved: bool = False) -> Float[Array, "b heads n c"]:
    """Rotates the pairs (x_i, x_{i + half}), the half-split order of HuggingFace checkpoints, or (x_2i, x_{2i + 1}).

    Entries of a head beyond twice the number of cosines are not rotated.
    """
    cos, sin = (part[:, None] for part in cos_sin)
    size = 2 * cos.shape[-1]
    wide, rest = x[..., :size].astype(jnp.float32), x[..., size:]
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else jnp.split(wide, 2, axis=-1)
    rotated = first * cos - second * sin, second * cos + first * sin
    both = jnp.stack(rotated, axis=-1).reshape(wide.shape) if interleaved else jnp.concatenate(rotated, axis=-1)
    both = both.astype(x.dtype)
    return jnp.concatenate([both, rest], axis=-1) if rest.shape[-1] else both


def computed_once(make: Callable[[], CosSin], positions: Int[Array, "b n"]) -> CosSin:
    """Returns the result of `make`, not fused into its consumers.

    XLA:CPU would recompute the sines for every element that they are multiplied with, in every layer. It does not fuse
    into conditionals, while it removes optimization barriers.
    """
    traced = isinstance(positions, jax.core.Tracer)  # only XLA fuses
    if not traced or jax.default_backend() != "cpu" or is_sharded() or 0 in positions.shape:
        return make()
    zeros = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(make))
    return jax.lax.cond(positions[0, 0] > -(2**30), make, lambda: zeros)  # always true, which XLA cannot know
