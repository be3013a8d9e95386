"""All that XLA can call, made and made known to it once a process."""

import re
import threading
from pathlib import Path

import jax
from llvmlite import ir

from eagle_jax.kernels.native import attention, norms, products, rounded
from eagle_jax.kernels.native.calls import register
from eagle_jax.kernels.native.code import Code, features, is_x86

NAMES = (*products.NAMES.values(), attention.NAME, attention.WINDOWED, norms.NAME)
KNOWN_VERSION = "0"  # of XLA's interface, the number before the point
NEEDED_ON_X86 = {"avx2", "fma"}  # without them every product is a call of the C library's

_lock = threading.Lock()
_code: Code | None = None


def make() -> None:
    """Makes the code, or reads it where it was kept.

    Raises:
        NotImplementedError: this XLA has another interface, or the CPU no instructions for it.
        RuntimeError: LLVM cannot do it.
    """
    global _code
    with _lock:
        if _code is None:
            if (version := _version()) != KNOWN_VERSION:
                raise NotImplementedError(f"XLA's interface has version {version}; expected {KNOWN_VERSION}")
            if is_x86() and not features() >= NEEDED_ON_X86:
                raise NotImplementedError(f"this CPU lacks one of {', '.join(sorted(NEEDED_ON_X86))}")
            code = Code("eagle_jax", _build)
            for name in (*NAMES, *rounded.names()):
                register(code, name)
            _code = code


def _build(module: ir.Module) -> None:
    for part in (products, rounded, attention, norms):
        part.build(module)


def _version() -> str:
    """Of the interface, as its header has it."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)", header.read_text(), re.MULTILINE)
    return found[1] if found else "unknown"
