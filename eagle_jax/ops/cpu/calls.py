"""Handlers: functions that XLA's programs call on CPU, by XLA's foreign function interface.

A handler gets a call frame with pointers to its buffers. It returns null, or an error that XLA raises.
"""

import ctypes
import dataclasses
from collections.abc import Callable, Sequence

import jax
from llvmlite import ir

from eagle_jax.ops.cpu.code import I32, I64, NULL, POINTER, Code, alloca, at, i64, is_null, read, write
from eagle_jax.ops.cpu.ffi_abi import ENUMS, EXTENSION_TYPE, MAJOR, MINOR, OFFSETS, SIZES
from eagle_jax.ops.cpu.signatures import Buffer, Checks, Signature

FRAME, API = OFFSETS["XLA_FFI_CallFrame"], OFFSETS["XLA_FFI_Api"]


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of a handler, as values of the code under construction.

    Attributes:
        name: name of the handler.
        arguments, results: in the order of its signature, which they have been checked against.
    """

    name: str
    module: ir.Module
    builder: ir.IRBuilder
    frame: ir.Value
    arguments: Sequence[Buffer]
    results: Sequence[Buffer]


def add_handler(module: ir.Module, name: str, signature: Signature, body: Callable[[Call], None]) -> None:
    """Adds a handler to a module. It returns an error for buffers that the signature does not allow.

    Args:
        body: builds its work.
    """
    handler = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    (frame,) = handler.args
    builder = ir.IRBuilder(handler.append_basic_block("entry"))
    _answer_metadata_request(builder, frame)
    checks = Checks(builder, name)
    arguments, results = checks.buffers(frame, signature)
    body(Call(name, module, builder, frame, arguments, results))
    builder.ret(NULL)
    builder.position_at_end(checks.failed)
    builder.ret(_error(builder, frame, checks.message))


def _answer_metadata_request(builder: ir.IRBuilder, frame: ir.Value) -> None:
    """Answers XLA's query, at registration, for the FFI version that a handler is written for."""
    extension = read(builder, at(builder, frame, FRAME["extension_start"]), POINTER)
    with builder.if_then(builder.not_(is_null(builder, extension)), likely=False):
        kind = read(builder, at(builder, extension, EXTENSION_TYPE), I32)
        is_request = builder.icmp_unsigned("==", kind, ir.Constant(I32, ENUMS["XLA_FFI_Extension_Metadata"]))
        with builder.if_then(is_request):
            pointer = at(builder, extension, OFFSETS["XLA_FFI_Metadata_Extension"]["metadata"])
            version = at(builder, read(builder, pointer, POINTER), OFFSETS["XLA_FFI_Metadata"]["api_version"])
            for field, number in (("major_version", MAJOR), ("minor_version", MINOR)):
                address = at(builder, version, OFFSETS["XLA_FFI_Api_Version"][field])
                write(builder, ir.Constant(I32, number), address)
            builder.ret(NULL)


def _error(builder: ir.IRBuilder, frame: ir.Value, message: ir.Value) -> ir.Value:
    """Returns a new error "invalid argument"."""
    code = ir.Constant(I32, ENUMS["XLA_FFI_Error_Code_INVALID_ARGUMENT"])
    return call_xla(builder, frame, "XLA_FFI_Error_Create", {"message": message, "errc": code})


def call_xla(builder: ir.IRBuilder, frame: ir.Value, function: str, fields: dict[str, ir.Value]) -> ir.Value:
    """Calls a function of XLA's table of functions.

    Args:
        fields: of the struct of its arguments.
    """
    struct = f"{function}_Args"
    args = alloca(builder, SIZES[struct])
    write(builder, i64(SIZES[struct]), args)
    write(builder, NULL, at(builder, args, OFFSETS["XLA_FFI_CallFrame"]["extension_start"]))
    for field, value in fields.items():
        write(builder, value, at(builder, args, OFFSETS[struct][field]))
    table = read(builder, at(builder, frame, FRAME["api"]), POINTER)
    pointer = read(builder, at(builder, table, API[function]), I64)
    return builder.call(builder.inttoptr(pointer, ir.FunctionType(POINTER, [POINTER]).as_pointer()), [args])


def register(code: Code, name: str) -> None:
    """Makes a handler known to XLA by its name.

    Raises:
        NotImplementedError: XLA refuses it.
    """
    pointer = ctypes.cast(code.address(name), ctypes.c_void_p)
    try:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(pointer), platform="cpu")
    except (RuntimeError, ValueError) as error:
        raise NotImplementedError(f"XLA does not take {name}: {error}") from error
