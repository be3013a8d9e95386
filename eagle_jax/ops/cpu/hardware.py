"""What this machine is beyond LLVM's list of instruction sets: its kind, its cache, and what Linux allows."""

import ctypes
import functools
import platform
import sys
from pathlib import Path

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux's system call on x86-64, and its arguments


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


@functools.cache
def l1_data_cache() -> int:
    """Bytes of a core's L1 data cache, from Linux's sysfs; 0 where that is missing."""
    path = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
    try:
        return 1024 * int(path.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


@functools.cache
def allows_amx() -> bool:
    """Whether Linux lets this process use the registers of AMX: asks for the permission, without which their first
    use ends the process.
    """
    return sys.platform == "linux" and is_x86() and _arch_prctl(REQUEST_PERMISSION, TILE_DATA) == 0


def _arch_prctl(option: int, value: int) -> int:
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, option, value)
