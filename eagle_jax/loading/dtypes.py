"""Chooses the dtypes of weights, by name and by device."""

from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.platform import is_gpu_without_bfloat16, multiplies_bfloat16


def dtype_of(dtype: Any) -> Any:
    """Returns the dtype to load in for `load`'s argument; None keeps the stored dtype.

    The default is another dtype on processors without bfloat16: float32 on CPUs, float16 on GPUs before NVIDIA's
    Ampere, such as a T4.
    """
    if dtype is not None:
        return dtype_named(dtype)
    if jax.default_backend() == "cpu":
        return None if multiplies_bfloat16() else jnp.float32
    return jnp.float16 if is_gpu_without_bfloat16() else None


def draft_dtype_of(dtype: Any, target_dtype: Any) -> Any:
    """Returns the dtype of a head or draft model for a target of `target_dtype`."""
    if dtype is not None:
        return dtype_named(dtype, "draft_dtype")
    is_halved = target_dtype == jnp.float32 and jax.default_backend() == "cpu" and multiplies_bfloat16()
    return jnp.bfloat16 if is_halved else target_dtype


def dtype_name(dtype: Any = None) -> str | None:
    """Returns the name of the dtype of `load(dtype=dtype)` on this machine; None is the target's stored dtype."""
    load_dtype = dtype_of(dtype)
    return None if load_dtype is None else jnp.dtype(load_dtype).name


def dtype_named(dtype: Any, name: str = "dtype") -> Any:
    """Returns the dtype of that name; None stays None."""
    if dtype is None:
        return None
    dtypes = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
    for key, value in dtypes.items():
        if dtype == key or not isinstance(dtype, str) and dtype == value:
            return value
    raise ValueError(f"{name}={dtype!r} is not known; expected one of {', '.join(dtypes)}")
