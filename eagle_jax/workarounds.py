"""Workarounds for faults of JAX and XLA, each with the version at which it can be deleted.

| what | needed by | delete when |
|---|---|---|
| `guard_cpu_reductions` | jaxlib 0.10.2 | the bound in pyproject.toml leaves 0.10.2 out |
| `exact_reduction_options` | all versions up to 0.12.0 | XLA:CPU no longer cuts softmaxes and norms into windows |
| `loop_options` on CPUs | all versions up to 0.12.0.1 | plain decoding no longer copies a cache without it |
| `gather` | jaxlib 0.10.2 | the bound in pyproject.toml leaves 0.10.2 out; then it is indexing |
| `loop_options` on GPUs | all versions up to 0.12.0 | XLA:GPU dequantizes groups within the product unasked |
"""

import functools
import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jaxtyping import Array

# jaxlib 0.10.2 sums wrongly on CPU when its YNN library fuses a long batched reduction (jax#39103). Taking only
# reductions away from the library gives right sums and keeps its fast bf16 matmul; an empty list would give right sums
# too, but bf16 matmuls several times slower.
BAD_JAXLIB = "0.10.2"
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SAFE_VALUE = "-LIBRARY_FUSION_TYPE_REDUCE"


def guard_cpu_reductions() -> None:
    """Makes jaxlib 0.10.2 sum correctly on CPU; does nothing under any other version.

    Adds one flag to `XLA_FLAGS`, which XLA reads when its first backend starts. A value that the user has chosen stays.
    Warns (RuntimeWarning) when the CPU backend is already running without the flag: results may then be wrong.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib.__version__ != BAD_JAXLIB or FLAG in flags:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={SAFE_VALUE}".strip()
    if _backend_is_running() and jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX was already running when eagle_jax was imported, and jaxlib {BAD_JAXLIB} can sum wrongly on CPU "
            f"(jax#39103); import eagle_jax before the first JAX computation, or set XLA_FLAGS={FLAG}={SAFE_VALUE}",
            RuntimeWarning,
            stacklevel=3,
        )


def _backend_is_running() -> bool:
    """Returns whether JAX has started a backend; it then refuses to change the number of CPU devices."""
    count = getattr(jax.config, "jax_num_cpu_devices")
    try:
        jax.config.update("jax_num_cpu_devices", count + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


def exact_reduction_options() -> dict[str, str]:
    """Returns compiler options that keep XLA:CPU from splitting each softmax and norm into windows of 32.

    A sum over a whole large matrix is then sequential and far less exact; sums over rows are not affected. Empty on
    other devices. Starts JAX's backend.
    """
    return {"xla_disable_hlo_passes": "tree_reduction_rewriter"} if jax.default_backend() == "cpu" else {}


def loop_options() -> dict[str, Any]:
    """Returns the compiler options of the decoding loop.

    On CPUs, without the first option XLA copies every cache array twice a step. With it, jaxlib 0.10.2 computes wrong
    numbers if a loop of the step contains a loop, so no step may. On GPUs, without the option XLA dequantizes whole
    group-quantized matrices in memory, in every step.
    """
    platform = jax.default_backend()
    if platform == "cpu":
        return {"xla_cpu_copy_insertion_use_region_analysis": True} | exact_reduction_options()
    return (
        _supported_option("xla_gpu_experimental_enable_subchannel_dequantisation_fusion") if platform == "gpu" else {}
    )


@functools.cache
def _supported_option(name: str) -> dict[str, Any]:
    """Returns the option, switched on, if this XLA knows it; unknown options are errors, and experimental ones go."""
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options={name: True}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if name not in str(error):
            raise
        return {}
    return {name: True}


@jax.custom_jvp
def gather(table: Array, first: Array, third: Array | None = None) -> Array:
    """Returns `table[first]`, or `table[first, :, third]`; as float32 where a CPU gathers bfloat16.

    XLA:CPU of jaxlib 0.10.2 cannot gather bfloat16: it converts the whole table to float32 in each call. It gathers
    integers, so the bits are gathered as uint16; the barrier keeps XLA from moving the conversion before the gather.
    """
    if table.dtype != jnp.bfloat16 or jax.default_backend() != "cpu":
        return _indexed(table, first, third)
    table, first, third = jax.lax.optimization_barrier((table, first, third))
    bits = _indexed(jax.lax.bitcast_convert_type(table, jnp.uint16), first, third)
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint32) << np.uint32(16), jnp.float32)


@gather.defjvp
def _gather_derivative(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    rows = gather(*primals)
    return rows, _indexed(tangents[0], *primals[1:]).astype(rows.dtype)


def _indexed(table: Array, first: Array, third: Array | None = None) -> Array:
    return table[first] if third is None else table[first, :, third]
