"""What must be right about the installed JAX before it computes anything, and where this machine keeps things."""

import os
import pathlib
import warnings

import jax
import jaxlib
from jax._src import xla_bridge

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
    if xla_bridge.backends_are_initialized() and jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX was already running when eagle_jax was imported, and jaxlib {BAD_JAXLIB} can sum wrongly on CPU "
            f"(jax#39103); import eagle_jax before the first JAX computation, or set XLA_FLAGS={FLAG}={SAFE_VALUE}",
            RuntimeWarning,
            stacklevel=3,
        )


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products; without them they are ten times slower than float32."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def cache_folder() -> pathlib.Path:
    """Where this user's machine keeps what can be made again: `eagle_jax` in XDG_CACHE_HOME, or in ~/.cache."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "eagle_jax"
