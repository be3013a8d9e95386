"""Root mean square norms, by XLA and by machine code of ours."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.kernels import native


def by_xla(x: Float[Array, "*rows h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "*rows h"]:
    """By XLA; multiplied with the scale in float32 if that is, else in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    kind = jnp.promote_types(scale.dtype, x.dtype)
    return (wide.astype(kind) * scale.astype(kind).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def native_norm(rows: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """The machine code has no gradient: where one is taken, XLA computes it."""
    return native.norm(rows, scale, eps)


native_norm.defvjp(
    lambda rows, scale, eps: jax.vjp(functools.partial(by_xla, eps=eps), rows, scale),
    lambda eps, back, gradient: back(gradient),
)
