"""Lowers a kernel for an NVIDIA GPU that is not there, as far as Triton's dialect."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import jax


def lowered(function: Callable[..., Any], *arguments: Any) -> str:
    """The program's text. Newer JAX wants to be told which GPU, and warns that its Triton lowering will go."""
    named = contextlib.nullcontext()
    if hasattr(jax.sharding, "AbstractDevice"):
        there = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")
        named = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=there))
    with named, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
