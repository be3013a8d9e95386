"""What this machine can do, and where it keeps things."""

import contextlib
import ctypes
import hashlib
import math
import os
import pathlib
import platform
import tempfile
import warnings
from typing import Any

import jax
import jaxlib

# "off" leaves compiled programs in memory alone.
KEEPING = "EAGLE_JAX_COMPILATION_CACHE"
BFLOAT16_FROM = 8.0  # compute capability, NVIDIA's Ampere; below, XLA computes bfloat16 in float32
JAX_KEEPS_FROM = 1.0  # seconds of compiling from which JAX keeps a program by default


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def keep_programs() -> None:
    """Keeps compiled programs on disk from now on, so that the next process does not compile them again.

    They lie in `eagle_jax/compiled` of the user's cache folder. Nothing is changed where JAX was given a folder already
    (JAX_COMPILATION_CACHE_DIR or jax.config), where its cache is switched off, or with EAGLE_JAX_COMPILATION_CACHE=off.
    Every kind of processor has a folder of its own, since programs are made of its instructions and a home may be
    shared by many machines; and every jaxlib, whose programs no other one reads.

    Warns (RuntimeWarning) when the folder cannot be written; programs are not kept then.

    Raises:
        ValueError: EAGLE_JAX_COMPILATION_CACHE is neither "on" nor "off".
    """
    configured = getattr(jax.config, "jax_compilation_cache_dir")
    if not _keeps() or configured or not getattr(jax.config, "jax_enable_compilation_cache"):
        return
    try:
        folder = _folder_of_programs(f"jaxlib-{jaxlib.__version__}")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        warnings.warn(
            f"compiled programs are not kept ({error}); let JAX_COMPILATION_CACHE_DIR name a folder that can be "
            f"written, or set {KEEPING}=off",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # The smallest are kept too: loading a model runs dozens, and each takes 20 ms to compile and 1 ms to read.
    if getattr(jax.config, "jax_persistent_cache_min_compile_time_secs") == JAX_KEEPS_FROM:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def programs_folder(maker: str) -> pathlib.Path | None:
    """Returns where programs of another maker than XLA are kept; None where they cannot be, or are not to be."""
    try:
        return _folder_of_programs(maker) if _keeps() else None
    except OSError:
        return None


def _keeps() -> bool:
    setting = os.environ.get(KEEPING, "on")
    if setting not in ("on", "off"):
        raise ValueError(f'{KEEPING}={setting!r} is not known; expected "on" or "off"')
    return setting == "on"


def _folder_of_programs(maker: str) -> pathlib.Path:
    """Returns a folder for programs of this processor."""
    folder = cache_folder() / "compiled" / f"{maker}-{processor()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who may write there decides what is run
    return folder


def return_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library is glibc, which keeps it for itself.

    A process that has loaded an AWQ target holds 0.6 bytes for each of its numbers, and held 1.7 without this
    (`benchmarks.decode.loading_memory`).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def multiplies_bfloat16() -> bool:
    """Returns whether this CPU has instructions for bfloat16 products; without them they are ten times slower than
    float32.
    """
    flags = _cpu_facts().get("flags", "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def is_gpu_without_bfloat16() -> bool:
    """Returns whether JAX runs on a GPU before NVIDIA's Ampere, such as a T4."""
    return jax.default_backend() == "gpu" and compute_capability(jax.devices()[0]) < BFLOAT16_FROM


def compute_capability(gpu: Any) -> float:
    """Returns CUDA's compute capability; infinite for GPUs of other makers, whose versions are no numbers."""
    try:
        return float(gpu.compute_capability)
    except (AttributeError, TypeError, ValueError):
        return math.inf


def cache_folder() -> pathlib.Path:
    """Returns where this user's machine keeps what can be made again: `eagle_jax` in XDG_CACHE_HOME, or in ~/.cache.

    Raises:
        FileNotFoundError: the user has no home.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME")
    try:
        return pathlib.Path(cache_home or pathlib.Path.home() / ".cache") / "eagle_jax"
    except RuntimeError:
        raise FileNotFoundError("this user has no home; let XDG_CACHE_HOME name a folder to keep things in") from None


def processor() -> str:
    """Returns a fingerprint of what programs for this processor have in common, as sixteen hexadecimal digits."""
    facts = _cpu_facts()
    kind = [platform.machine(), *(facts.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name"))]
    can = sorted(facts.get("flags", facts.get("Features", platform.processor())).split())
    return hashlib.sha256("\n".join([*kind, *can]).encode()).hexdigest()[:16]


def _cpu_facts() -> dict[str, str]:
    """Returns what Linux reports of the first core; nothing elsewhere."""
    try:
        first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
