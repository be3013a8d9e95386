"""Precision of products, and dtype of activations."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def precision(dtype: DTypeLike) -> jax.lax.Precision:
    """Returns full precision for float32, which TPUs and GPUs multiply in bfloat16 or TF32 by default."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def activation_dtype(weights: DTypeLike) -> np.dtype:
    """Returns the dtype of activations: the weights'; on CPUs float32, since only products gain from bfloat16."""
    return np.dtype(jnp.float32) if jax.default_backend() == "cpu" else np.dtype(weights)
