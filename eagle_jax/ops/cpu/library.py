"""All handlers, in two parts, each compiled and registered with XLA once in a process."""

import sys
import threading
from typing import Any

from llvmlite import ir

from eagle_jax.ops.cpu import (
    attention,
    attention_block,
    ffi_abi,
    float_products,
    mlp_block,
    norms,
    quantized_products,
    ranking,
    worker_pool,
)
from eagle_jax.ops.cpu.calls import register
from eagle_jax.ops.cpu.code import Code, features, is_x86

# Two parts, since compiling all takes several times as long as what a model needs.
FLOATS, QUANTIZED = "eagle_jax", "eagle_jax_quantized"
PARTS: dict[str, tuple[Any, ...]] = {
    FLOATS: (float_products, attention, norms, ranking, attention_block, mlp_block),
    QUANTIZED: (quantized_products,),
}
NEEDED_ON_X86 = {"avx2", "fma"}  # without them LLVM calls the C library for every product

_lock = threading.Lock()
_compiled: dict[str, Code] = {}


def make(part: str = FLOATS) -> None:
    """Compiles a part, or reads it from the cache, and registers its handlers.

    Raises:
        NotImplementedError: this platform, CPU or version of XLA is not supported; the message is one sentence.
        RuntimeError: LLVM fails.
    """
    with _lock:
        if part not in _compiled:
            if sys.platform == "win32":
                raise NotImplementedError("its threads need functions of POSIX, which Windows does not have")
            if sys.maxsize < 2**32 or sys.byteorder != "little":
                raise NotImplementedError("it is for machines of 64 bits, lowest byte first")
            if (reason := ffi_abi.mismatch()) is not None:
                raise NotImplementedError(reason)
            if is_x86() and not features() >= NEEDED_ON_X86:
                raise NotImplementedError(f"this CPU lacks one of {', '.join(sorted(NEEDED_ON_X86))}")
            code = Code(part, lambda module: _build(module, part))
            _compiled[part] = code  # before XLA knows its addresses, which have to stay valid
            worker_pool.pass_table(code)
            for piece in PARTS[part]:
                for name in piece.names():
                    register(code, name)


def _build(module: ir.Module, part: str) -> None:
    worker_pool.build(module)
    for piece in PARTS[part]:
        piece.build(module)
