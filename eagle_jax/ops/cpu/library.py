"""All that XLA can call, in parts, each made and made known to it once a process."""

import sys
import threading
from typing import Any

from llvmlite import ir

from eagle_jax.ops.cpu import (
    attention,
    crew,
    ffi_abi,
    first_half,
    largest,
    norms,
    products,
    rounded,
    second_half,
)
from eagle_jax.ops.cpu.calls import register
from eagle_jax.ops.cpu.code import Code, features, is_x86

# Apart, since making all of it takes several times as long as what a model needs.
FLOATS, ROUNDED = "eagle_jax", "eagle_jax_rounded"
PARTS: dict[str, tuple[Any, ...]] = {
    FLOATS: (products, attention, norms, largest, first_half, second_half),
    ROUNDED: (rounded,),
}
NEEDED_ON_X86 = {"avx2", "fma"}  # without them every product is a call of the C library's

_lock = threading.Lock()
_made: dict[str, Code] = {}


def make(part: str = FLOATS) -> None:
    """Makes the code of a part, or reads it where it was kept.

    Raises:
        NotImplementedError: this platform, CPU or XLA is none that it is for; the message is one sentence.
        RuntimeError: LLVM cannot do it.
    """
    with _lock:
        if part not in _made:
            if sys.platform == "win32":
                raise NotImplementedError("its threads need functions of POSIX, which Windows does not have")
            if sys.maxsize < 2**32 or sys.byteorder != "little":
                raise NotImplementedError("it is for machines of 64 bits, lowest byte first")
            if (reason := ffi_abi.mismatch()) is not None:
                raise NotImplementedError(reason)
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
