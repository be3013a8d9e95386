"""Names that an object file leaves to the process to resolve.

LLVM calls functions of the C library for some operations, such as logf or memset. When its JIT meets a name that it
cannot resolve it ends the process, so names are resolved before.
"""

import ctypes
import struct
from collections.abc import Iterator

from llvmlite import binding

ELF, MACH_O = b"\x7fELF\x02\x01", b"\xcf\xfa\xed\xfe"  # first bytes of an object: 64 bits, lowest byte first
SYMBOL_TABLE_SECTION, SYMBOL_TABLE_COMMAND = 2, 2  # SHT_SYMTAB, LC_SYMTAB


def unresolved(data: bytes) -> list[str]:
    """Returns an object's undefined names that this process lacks; LLVM is told of those that Python alone finds."""
    return [name for name in undefined(data) if not _resolve(name)]


def undefined(data: bytes) -> list[str]:
    """Returns names that an object uses and does not define.

    Raises:
        NotImplementedError: the object is neither ELF nor Mach-O.
    """
    if data.startswith(ELF):
        return sorted(set(_of_elf(data)))
    if data.startswith(MACH_O):
        return sorted(set(_of_mach_o(data)))
    raise NotImplementedError("object files of this platform are neither ELF nor Mach-O")


def _resolve(name: str) -> bool:
    if binding.address_of_symbol(name) is not None:
        return True
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # Windows has no CDLL(None)
        return False
    binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return True


def _of_elf(data: bytes) -> Iterator[str]:
    (sections,), (size, count) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + index * size) for index in range(count)]
    for _, kind, _, _, start, length, strings, _, _, entry in headers:
        if kind != SYMBOL_TABLE_SECTION:
            continue
        for offset in range(start, start + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", data, offset)
            if name and section == 0:
                yield _text(data, headers[strings][4] + name)


def _of_mach_o(data: bytes) -> Iterator[str]:
    (count,), offset = struct.unpack_from("<I", data, 16), 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, offset)
        if command == SYMBOL_TABLE_COMMAND:
            start, number, strings, _ = struct.unpack_from("<IIII", data, offset + 8)
            for entry in range(start, start + 16 * number, 16):
                name, kind = struct.unpack_from("<IB", data, entry)
                if kind & 0xE0 == 0 and kind & 0x0E == 0:  # neither of a debugger nor of a section
                    yield _text(data, strings + name).removeprefix("_")
        offset += size


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
