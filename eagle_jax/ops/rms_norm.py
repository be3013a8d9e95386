"""Root mean square norm."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.ops.dispatch import dispatch
from eagle_jax.ops.types import Norm


def rms_norm(x: Float[Array, "*rows h"], norm: Norm) -> Float[Array, "*rows h"]:
    """Computes `x / sqrt(mean(x ** 2) + eps) * scale` in float32."""
    scale = norm.scale.astype(jnp.float32 if norm.plus_one or norm.wide else x.dtype)
    scale = 1 + scale if norm.plus_one else scale
    return dispatch("rms_norm", reference, x.reshape(-1, x.shape[-1]), scale, eps=norm.eps).reshape(x.shape)


def reference(x: Float[Array, "r h"], scale: Float[Array, "h"], *, eps: float) -> Float[Array, "r h"]:
    """Computes the norm of rows; multiplied with the scale in float32 if that is, else in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    dtype = jnp.float32 if scale.dtype == jnp.float32 else x.dtype
    return (wide.astype(dtype) * scale.astype(dtype)[None]).astype(x.dtype)
