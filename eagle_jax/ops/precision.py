"""Dtypes: in what precision products are made, and what is between the layers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def precision(dtype: DTypeLike) -> jax.lax.Precision:
    """float32 means float32: by default TPUs and GPUs multiply it in bfloat16 or TF32, which no comparison survives."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def activation_dtype(weights: DTypeLike) -> np.dtype:
    """Dtype between the layers: the weights', but float32 on CPU, where nothing but products is fast in bfloat16."""
    return np.dtype(jnp.float32) if jax.default_backend() == "cpu" else np.dtype(weights)
