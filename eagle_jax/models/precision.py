"""In what precision products of a dtype are made."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def precision(dtype: DTypeLike) -> jax.lax.Precision:
    """float32 means float32: by default TPUs and GPUs multiply it in bfloat16 or TF32, which no comparison survives."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT
