"""All handlers, in parts, each compiled and registered with XLA once in a process."""

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
    ranking,
    worker_pool,
)
from eagle_jax.ops.cpu.calls import register
from eagle_jax.ops.cpu.code import Code, features, is_x86
from eagle_jax.ops.cpu.product_kind import TABLES, ProductKind
from eagle_jax.ops.cpu.quantized_arithmetic import has_byte_shuffles
from eagle_jax.ops.cpu.quantized_products import Products

# One part for float weights, one for each kind of products of quantized ones: compiling all would take several times as
# long as what a model needs.
Part = ProductKind | None
FLOATS = None
NEEDED_ON_X86 = {"avx2", "fma"}  # without them LLVM calls the C library for every product

_lock = threading.Lock()
_compiled: dict[Part, Code] = {}


def make(part: Part = FLOATS) -> None:
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
            if part is not None and part.levels in TABLES and not has_byte_shuffles():
                raise NotImplementedError("tables of levels are looked up with instructions of x86")
            name = "eagle_jax" if part is None else f"eagle_jax_{part.name}"
            code = Code(name, lambda module: _build(module, part))
            _compiled[part] = code  # before XLA knows its addresses, which have to stay valid
            worker_pool.pass_table(code)
            for piece in pieces(part):
                for handler in piece.names():
                    register(code, handler)


def pieces(part: Part) -> tuple[Any, ...]:
    """Returns the functions that add the handlers of a part."""
    if part is None:
        return float_products, attention, norms, ranking, attention_block, mlp_block
    return (Products(part),)


def _build(module: ir.Module, part: Part) -> None:
    worker_pool.build(module)
    for piece in pieces(part):
        piece.build(module)
