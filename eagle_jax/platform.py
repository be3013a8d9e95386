"""Features of this machine's processors, and its cache folders."""

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

# "off" keeps compiled programs in memory only.
CACHE_VARIABLE = "EAGLE_JAX_COMPILATION_CACHE"
MIN_BFLOAT16_CAPABILITY = 8.0  # NVIDIA's Ampere; on older GPUs XLA computes bfloat16 in float32
JAX_MIN_COMPILE_SECONDS = 1.0  # JAX's default: programs that compile faster are not cached


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def keep_programs() -> None:
    """Turns on JAX's compilation cache on disk, so that the next process does not compile the same programs again.

    The folder is `eagle_jax/compiled` in the user's cache folder. Nothing changes if JAX has a folder already
    (JAX_COMPILATION_CACHE_DIR or jax.config), if its cache is off, or with EAGLE_JAX_COMPILATION_CACHE=off. Each kind
    of processor has its own folder, since machines of several kinds may share a home, and so has each jaxlib.

    Warns (RuntimeWarning) if the folder cannot be written; programs are not cached then.

    Raises:
        ValueError: EAGLE_JAX_COMPILATION_CACHE is neither "on" nor "off".
    """
    configured = getattr(jax.config, "jax_compilation_cache_dir")
    if not _cache_is_on() or configured or not getattr(jax.config, "jax_enable_compilation_cache"):
        return
    try:
        folder = _folder_of_programs(f"jaxlib-{jaxlib.__version__}")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        warnings.warn(
            f"compiled programs are not kept ({error}); let JAX_COMPILATION_CACHE_DIR name a writable folder, or "
            f"set {CACHE_VARIABLE}=off",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs are cached too: loading a model runs dozens, each 20 ms to compile and 1 ms to read.
    if getattr(jax.config, "jax_persistent_cache_min_compile_time_secs") == JAX_MIN_COMPILE_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def programs_folder(compiler: str) -> pathlib.Path | None:
    """Returns the cache folder of a compiler other than XLA; None if it is off or cannot be written."""
    try:
        return _folder_of_programs(compiler) if _cache_is_on() else None
    except OSError:
        return None


def _cache_is_on() -> bool:
    setting = os.environ.get(CACHE_VARIABLE, "on")
    if setting not in ("on", "off"):
        raise ValueError(f'{CACHE_VARIABLE}={setting!r} is not known; expected "on" or "off"')
    return setting == "on"


def _folder_of_programs(compiler: str) -> pathlib.Path:
    """Creates and returns the cache folder of a compiler for this processor."""
    folder = cache_folder() / "compiled" / f"{compiler}-{processor()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever can write there controls what is run
    return folder


def return_freed_memory() -> None:
    """Returns freed memory to the system; glibc keeps it otherwise, and other C libraries are left alone.

    After loading an AWQ target a process holds 0.6 bytes per weight, and 1.7 without this
    (`benchmarks.decode.loading_memory`).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def multiplies_bfloat16() -> bool:
    """Returns whether this CPU multiplies bfloat16 in hardware; in software it is ten times slower than float32."""
    flags = _cpu_facts().get("flags", "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def is_gpu_without_bfloat16() -> bool:
    """Returns whether JAX runs on a GPU before NVIDIA's Ampere, such as a T4."""
    return jax.default_backend() == "gpu" and compute_capability(jax.devices()[0]) < MIN_BFLOAT16_CAPABILITY


def compute_capability(gpu: Any) -> float:
    """Returns CUDA's compute capability; infinity for GPUs of other vendors, whose versions are not numbers."""
    try:
        return float(gpu.compute_capability)
    except (AttributeError, TypeError, ValueError):
        return math.inf


def cache_folder() -> pathlib.Path:
    """Returns the user's cache folder: `eagle_jax` in XDG_CACHE_HOME or ~/.cache.

    Raises:
        FileNotFoundError: the user has no home.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME")
    try:
        return pathlib.Path(cache_home or pathlib.Path.home() / ".cache") / "eagle_jax"
    except RuntimeError:
        raise FileNotFoundError("this user has no home folder; let XDG_CACHE_HOME name a folder for caches") from None


def processor() -> str:
    """Returns a fingerprint of this kind of processor, sixteen hexadecimal digits."""
    facts = _cpu_facts()
    kind = [platform.machine(), *(facts.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name"))]
    can = sorted(facts.get("flags", facts.get("Features", platform.processor())).split())
    return hashlib.sha256("\n".join([*kind, *can]).encode()).hexdigest()[:16]


def _cpu_facts() -> dict[str, str]:
    """Returns what Linux reports of the first core; empty on other systems."""
    try:
        first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
