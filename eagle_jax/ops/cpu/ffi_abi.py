"""Layout of the C structs of XLA's FFI, which generated code reads and writes by offset.

`mismatch` compares the table with `xla/ffi/api/c_api.h`, which jaxlib ships. Versions 0.3 (jaxlib 0.10.2) and 0.5
(jaxlib 0.12.0) agree on everything here: later minor versions only append fields.
"""

import re
from pathlib import Path

import jax

MAJOR, MINOR = 0, 3  # version of the API that the offsets are written for, which handlers report to XLA

# Offsets in bytes, with 8 bytes for a pointer.
OFFSETS = {
    "XLA_FFI_CallFrame": {"extension_start": 8, "api": 16, "ctx": 24, "args": 40, "rets": 80},
    "XLA_FFI_Args": {"size": 16, "types": 24, "args": 32},
    "XLA_FFI_Rets": {"size": 16, "types": 24, "rets": 32},
    "XLA_FFI_Buffer": {"dtype": 16, "data": 24, "rank": 32, "dims": 40},
    "XLA_FFI_Metadata_Extension": {"metadata": 24},
    "XLA_FFI_Metadata": {"api_version": 8},
    "XLA_FFI_Api_Version": {"major_version": 16, "minor_version": 20},
    "XLA_FFI_Api": {
        "XLA_FFI_Error_Create": 48,
        "XLA_FFI_Error_Destroy": 64,
        "XLA_FFI_ThreadPool_Schedule": 136,
        "XLA_FFI_ThreadPool_NumThreads": 144,
    },
    "XLA_FFI_Error_Create_Args": {"message": 16, "errc": 24},
    "XLA_FFI_Error_Destroy_Args": {"error": 16},
    "XLA_FFI_ThreadPool_Schedule_Args": {"ctx": 16, "task": 24, "data": 32},
    "XLA_FFI_ThreadPool_NumThreads_Args": {"ctx": 16, "num_threads": 24},
}
EXTENSION_TYPE = 8  # offset in the first member of XLA_FFI_Metadata_Extension, whose name differs between versions
# Sizes of the structs that generated code passes to XLA.
SIZES = {
    "XLA_FFI_Error_Create_Args": 28,
    "XLA_FFI_Error_Destroy_Args": 24,
    "XLA_FFI_ThreadPool_Schedule_Args": 40,
    "XLA_FFI_ThreadPool_NumThreads_Args": 32,
}
ENUMS = {
    "XLA_FFI_Extension_Metadata": 1,
    "XLA_FFI_ArgType_BUFFER": 1,
    "XLA_FFI_RetType_BUFFER": 1,
    "XLA_FFI_Error_Code_INVALID_ARGUMENT": 3,
    "XLA_FFI_DataType_S8": 2,
    "XLA_FFI_DataType_S16": 3,
    "XLA_FFI_DataType_S32": 4,
    "XLA_FFI_DataType_U32": 8,
    "XLA_FFI_DataType_F16": 10,
    "XLA_FFI_DataType_F32": 11,
    "XLA_FFI_DataType_BF16": 16,
}
DTYPES = {
    "int8": ENUMS["XLA_FFI_DataType_S8"],
    "int16": ENUMS["XLA_FFI_DataType_S16"],
    "int32": ENUMS["XLA_FFI_DataType_S32"],
    "uint32": ENUMS["XLA_FFI_DataType_U32"],
    "float16": ENUMS["XLA_FFI_DataType_F16"],
    "float32": ENUMS["XLA_FFI_DataType_F32"],
    "bfloat16": ENUMS["XLA_FFI_DataType_BF16"],
}

Layout = dict[str, int]  # offsets of fields by name; the size of the struct under SIZE
SIZE = "sizeof"
_SCALARS = {"size_t": 8, "int64_t": 8, "int32_t": 4, "uint32_t": 4, "int": 4}


def mismatch() -> str | None:
    """Returns how the FFI of the installed jaxlib differs from what generated code expects; None if it does not."""
    path = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        return mismatch_in(path.read_text())
    except OSError as error:
        return f"jaxlib ships no readable header of its FFI ({error})"


def mismatch_in(header: str) -> str | None:
    """Returns `mismatch` for the text of a header."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    version = [_number(text, rf"#define XLA_FFI_API_{part} (\d+)") for part in ("MAJOR", "MINOR")]
    major, minor = version
    if major != MAJOR or minor is None or minor < MINOR:
        match = "unknown" if None in version else f"{major}.{minor}"
        return f"the version of XLA's FFI is {match}; expected {MAJOR}.{MINOR} or a later {MAJOR}.x"
    for name, value in ENUMS.items():
        if (number := _number(text, rf"\b{name} = (\d+)")) != value:
            return f"{name} of XLA's FFI is {number}; expected {value}"
    layouts = _layouts(text)
    for struct, fields in OFFSETS.items():
        expected = fields | ({SIZE: SIZES[struct]} if struct in SIZES else {})
        for field, offset in expected.items():
            if (actual := layouts.get(struct, {}).get(field)) != offset:
                return f"{field} of {struct} of XLA's FFI is {actual}; expected {offset}"
    return None


def _number(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def _layouts(text: str) -> dict[str, Layout]:
    """Returns the layout of each struct of a header without comments, up to its first field of an unknown type."""
    enums = re.findall(r"typedef enum \{[^}]*\} (\w+);", text)
    flags = re.findall(r"typedef uint32_t (\w+);", text)
    scalars = _SCALARS | {"pointer": 8} | dict.fromkeys([*enums, *flags], 4)
    layouts: dict[str, Layout] = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\}", text, re.DOTALL):
        layouts[name] = _layout(body, scalars, layouts)
    return layouts


def _layout(body: str, scalars: dict[str, int], structs: dict[str, Layout]) -> Layout:
    """Offsets of the fields, each aligned to its size."""
    offset, layout = 0, {}
    for kind, name in _fields(body):
        if kind in structs:
            offset, size = _up_to(offset, 8), _up_to(structs[kind][SIZE], 8)
        elif kind in scalars:
            size = scalars[kind]
            offset = _up_to(offset, size)
        else:
            break
        layout[name] = offset
        offset += size
        layout[SIZE] = offset
    return layout


def _fields(body: str) -> list[tuple[str, str]]:
    """Returns type and name of each field: pointers and functions have the type "pointer"."""
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        if function := re.search(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", declaration):
            fields.append(("pointer", function[1]))
        else:
            *kind, name = declaration.replace("*", " * ").replace("(", " ").split()
            fields.append(("pointer" if "*" in kind else kind[-1], name))
    return fields


def _up_to(offset: int, multiple: int) -> int:
    return -(-offset // multiple) * multiple
