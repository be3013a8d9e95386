"""Dtypes by name."""

from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.platform import is_gpu_without_bfloat16, multiplies_bfloat16


def dtype_of(dtype: Any) -> Any:
    """Returns the dtype to load in, given `load`'s argument; None keeps the stored one.

    Without an argument, processors that lack bfloat16 get another: float32 on CPUs, float16 on GPUs before NVIDIA's
    Ampere, such as a T4.
    """
    if dtype is not None:
        return dtype_named(dtype)
    if jax.default_backend() == "cpu":
        return None if multiplies_bfloat16() else jnp.float32
    return jnp.float16 if is_gpu_without_bfloat16() else None


def dtype_of_draft(dtype: Any, targets: Any) -> Any:
    """Returns the dtype of what drafts for a target of dtype `targets`."""
    if dtype is not None:
        return dtype_named(dtype, "draft_dtype")
    halved = targets == jnp.float32 and jax.default_backend() == "cpu" and multiplies_bfloat16()
    return jnp.bfloat16 if halved else targets


def dtype_name(dtype: Any = None) -> str | None:
    """Returns the name of the dtype that `load(dtype=dtype)` computes in here; None is the target's stored one."""
    computed = dtype_of(dtype)
    return None if computed is None else jnp.dtype(computed).name


def dtype_named(dtype: Any, name: str = "dtype") -> Any:
    """Returns the dtype of that name; None stays None."""
    if dtype is None:
        return None
    dtypes = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
    for known, value in dtypes.items():
        if dtype == known or not isinstance(dtype, str) and dtype == value:
            return value
    raise ValueError(f"{name}={dtype!r} is not known; expected one of {', '.join(dtypes)}")
