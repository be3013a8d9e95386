"""All that XLA can call, in parts, each made and made known to it once a process."""

import re
import threading
from pathlib import Path
from typing import Any

import jax
from llvmlite import ir

from eagle_jax.kernels.native import (
    attention,
    crew,
    first_half,
    guesses,
    head_pass,
    largest,
    lookup,
    norms,
    products,
    rounded,
    second_half,
)
from eagle_jax.kernels.native.calls import register
from eagle_jax.kernels.native.code import Code, features, is_x86

# Apart, since making all of it takes several times as long as what a model needs.
FLOATS, ROUNDED, HEADS = "eagle_jax", "eagle_jax_rounded", "eagle_jax_heads_{}"
PARTS: dict[str, tuple[Any, ...]] = {
    FLOATS: (products, attention, norms, largest, lookup, first_half, second_half),
    ROUNDED: (rounded,),
    **{HEADS.format(dtype): (head_pass.Piece(dtype), guesses.Piece(dtype)) for dtype in head_pass.NAMES},
}
KNOWN_VERSION = "0"  # of XLA's interface, the number before the point
NEEDED_ON_X86 = {"avx2", "fma"}  # without them every product is a call of the C library's

_lock = threading.Lock()
_made: dict[str, Code] = {}


def make(part: str = FLOATS) -> None:
    """Makes the code of a part, or reads it where it was kept.

    Raises:
        NotImplementedError: this XLA has another interface, or the CPU no instructions for it.
        RuntimeError: LLVM cannot do it.
    """
    with _lock:
        if part not in _made:
            if (version := _version()) != KNOWN_VERSION:
                raise NotImplementedError(f"XLA's interface has version {version}; expected {KNOWN_VERSION}")
            if is_x86() and not features() >= NEEDED_ON_X86:
                raise NotImplementedError(f"this CPU lacks one of {', '.join(sorted(NEEDED_ON_X86))}")
            code = Code(part, lambda module: _build(module, part))
            _made[part] = code  # before XLA knows of it: it has to stay
            crew.introduce(code)
            for piece in PARTS[part]:
                for name in piece.names():
                    register(code, name)


def _build(module: ir.Module, part: str) -> None:
    crew.build(module)
    for piece in PARTS[part]:
        piece.build(module)


def _version() -> str:
    """Of the interface, as its header has it."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)", header.read_text(), re.MULTILINE)
    return found[1] if found else "unknown"
