"""What XLA's programs on CPU call: handlers of its foreign function interface, whose major version is 0.

A handler is given a frame with pointers to buffers. Offsets are in bytes, of a machine with pointers of eight, and are
those of `xla/ffi/api/c_api.h`, which comes with jaxlib; 0.3 and 0.5 have the same.
"""

import ctypes
import dataclasses
from collections.abc import Callable, Sequence

import jax
from llvmlite import ir

from eagle_jax.kernels.native.code import I32, I64, NULL, POINTER, Code, at, is_null, read, write

EXTENSION, API, CONTEXT, ARGUMENTS, RESULTS = 8, 16, 24, 40, 80  # of a frame
LISTED = 32  # of its lists of arguments and results: where their pointers are
DATA, DIMS = 24, 40  # of a buffer
EXTENSION_KIND, ASKS_FOR_METADATA = 8, 1
METADATA, MAJOR, MINOR = 24, 24, 28  # of an extension that asks for metadata, and of these
API_MAJOR, API_MINOR = 32, 36


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument or a result, while a handler is built."""

    builder: ir.IRBuilder
    pointer: ir.Value

    @property
    def data(self) -> ir.Value:
        return read(self.builder, at(self.builder, self.pointer, DATA), POINTER)

    def size(self, axis: int) -> ir.Value:
        """Its length along an axis."""
        dims = read(self.builder, at(self.builder, self.pointer, DIMS), POINTER)
        return read(self.builder, at(self.builder, dims, axis, 8), I64)


@dataclasses.dataclass(frozen=True)
class Placed:
    """What lies somewhere as a buffer would, such as a part of one.

    Attributes:
        sizes: lengths along its axes.
    """

    data: ir.Value
    sizes: tuple[ir.Value, ...]

    def size(self, axis: int) -> ir.Value:
        """Its length along an axis."""
        return self.sizes[axis]


Lying = Buffer | Placed


@dataclasses.dataclass(frozen=True)
class Call:
    """What a handler was called with, while it is built.

    Attributes:
        name: of the handler.
    """

    name: str
    module: ir.Module
    builder: ir.IRBuilder
    frame: ir.Value
    arguments: Sequence[Buffer]
    results: Sequence[Buffer]


def add_handler(
    module: ir.Module, name: str, body: Callable[[Call], None], *, arguments: int, results: int = 1
) -> None:
    """Adds a handler, whose work `body` builds."""
    handler = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    (frame,) = handler.args
    builder = ir.IRBuilder(handler.append_basic_block("entry"))
    extension = read(builder, at(builder, frame, EXTENSION), POINTER)
    with builder.if_then(builder.not_(is_null(builder, extension))):
        kind = read(builder, at(builder, extension, EXTENSION_KIND), I32)
        with builder.if_then(builder.icmp_unsigned("==", kind, ir.Constant(I32, ASKS_FOR_METADATA))):
            _tell_version(builder, frame, extension)
            builder.ret(NULL)

    def listed(of: int, count: int) -> list[Buffer]:
        pointers = read(builder, at(builder, frame, of + LISTED), POINTER)
        return [Buffer(builder, read(builder, at(builder, pointers, i, 8), POINTER)) for i in range(count)]

    body(Call(name, module, builder, frame, listed(ARGUMENTS, arguments), listed(RESULTS, results)))
    builder.ret(NULL)


def _tell_version(builder: ir.IRBuilder, frame: ir.Value, extension: ir.Value) -> None:
    """XLA asks, when a handler is registered, which version it is made for; it is the one that asks."""
    api = read(builder, at(builder, frame, API), POINTER)
    metadata = read(builder, at(builder, extension, METADATA), POINTER)
    for version, told in ((API_MAJOR, MAJOR), (API_MINOR, MINOR)):
        write(builder, read(builder, at(builder, api, version), I32), at(builder, metadata, told))


def register(code: Code, name: str) -> None:
    """Makes a handler known to XLA by its name."""
    pointer = ctypes.cast(code.address(name), ctypes.c_void_p)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(pointer), platform="cpu")
