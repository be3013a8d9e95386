"""Detects hardware facts that LLVM does not report: the CPU's kind, its cache, and permissions of Linux."""

import ctypes
import functools
import platform
import sys
from pathlib import Path

from eagle_jax.platform import is_x86

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux's system call on x86-64, and its arguments
AT_HWCAP, HWCAP_ASIMDDP = 16, 1 << 20  # Linux's list of what a CPU has, and the bit of NEON's dot products


def is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


@functools.cache
def dot_products_of_arm() -> dict[str, bool]:
    """Returns whether an ARM CPU has dot products of bytes, which LLVM does not detect; empty on other CPUs."""
    if not is_arm() or sys.platform == "win32":
        return {}
    if sys.platform == "darwin":  # as every Mac has that is no x86
        return {"dotprod": True}
    get_value = ctypes.CDLL(None).getauxval
    get_value.restype, get_value.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return {"dotprod": bool(get_value(AT_HWCAP) & HWCAP_ASIMDDP)}


def cache_line() -> int:
    """Returns the number of bytes that cores exchange at a time, at most."""
    return 128 if is_arm() and sys.platform == "darwin" else 64


@functools.cache
def l1_data_cache() -> int:
    """Returns the size in bytes of a core's L1 data cache, from Linux's sysfs; 0 where that is missing."""
    path = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
    try:
        return 1024 * int(path.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


@functools.cache
def allows_amx() -> bool:
    """Requests permission for the AMX registers from Linux, without which their first use kills the process."""
    return sys.platform == "linux" and is_x86() and _arch_prctl(REQUEST_PERMISSION, TILE_DATA) == 0


def _arch_prctl(option: int, value: int) -> int:
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, option, value)
