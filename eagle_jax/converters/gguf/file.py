"""GGUF files: metadata and a table of tensors, whose values stay on disk until they are read.

    "GGUF", version, number of tensors, number of metadata entries
    metadata    name, type, value
    table       name, rank, sizes (innermost first), type, offset
    values      of each tensor at its offset, from a multiple of the alignment on

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import dataclasses
import functools
import math
import pathlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.gguf.split import part_paths

VERSIONS = (2, 3)
ALIGNMENT = 32

# Types of metadata: those of a fixed size by their format, the others by number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor in a GGUF file.

    Attributes:
        shape: in the order of PyTorch, outermost first.
        type: `F32`, `Q4_K`, ... as the `gguf` library names it.
        data: uint8 `[.., bytes of a row]`, mapped into memory.
        file: where it is.
    """

    shape: tuple[int, ...]
    type: str
    data: np.ndarray
    file: pathlib.Path


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """A model whose header is read.

    Attributes:
        path: where it is; of several parts, the first.
        metadata: every entry by name; arrays are lists. Parts after the first have none of the model's.
        tensors: every tensor of all parts, by the file's own name.
    """

    path: pathlib.Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """The model architecture in the file's metadata."""
        return str(self.metadata.get("general.architecture"))

    def architecture_metadata(self) -> dict[str, Any]:
        """Returns entries about the model, by their names after the architecture's."""
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}


def read_gguf(path: pathlib.Path) -> GgufFile:
    """Returns the header of a GGUF file, or of all parts of a model by the first one's name.

    It is read once for as long as the files stay the same.

    Raises:
        FileNotFoundError: parts are missing.
        ImportError: the `gguf` library is not installed.
        ValueError: no GGUF file, a truncated one, one that is not the first part, or a tensor of a type that is not
            known.
    """
    stats = [(part.resolve(), part.stat()) for part in part_paths(path)]
    return _read(tuple((part, stat.st_mtime_ns, stat.st_size) for part, stat in stats))


# gguf.GGUFReader is not used: it makes numpy arrays for every token and took 100 s for a vocabulary of 262,144.
@functools.lru_cache(maxsize=4)
def _read(parts: tuple[tuple[pathlib.Path, int, int], ...]) -> GgufFile:
    """Reads the headers of all parts, by path, time of change and size."""
    headers = [_header(path, number, len(parts), size) for number, (path, _, size) in enumerate(parts)]
    tensors = _by_name("tensor", (entry for header in headers for entry in header.tensors.items()))
    expected = headers[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ValueError(
            f"{parts[0][0]} states {expected} tensors in {len(parts)} parts, which hold {len(tensors)}; copy or "
            "download them again"
        )
    return GgufFile(parts[0][0], headers[0].metadata, tensors)


def plain(value: Any) -> Any:
    """Returns the shortest decimal of a number stored in 32 bits: 1e-6, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _header(path: pathlib.Path, number: int, count: int, size: int) -> "_Header":
    """Returns the header of part `number`, from 0, of `count`."""
    try:
        if not size:
            raise ValueError("it is empty; copy or download it again")
        header = _Header(path)
        split = header.metadata.get("split.no", 0), header.metadata.get("split.count", 1)
        if split[1] != count:
            raise ValueError(
                f"it is one of {split[1]} parts; expected the names NAME-00001-of-{split[1]:05}.gguf and so on, in "
                "one folder, or one file of them (`llama-gguf-split --merge`)"
            )
        if split[0] != number:
            raise ValueError(f"it is part {split[0] + 1} by its split.no, and part {number + 1} by its name")
        return header
    except (ValueError, OverflowError, TypeError, struct.error) as error:
        raise ValueError(f"{path} cannot be read as a GGUF file: {error}") from error


class _Header:
    """Reads a header from front to back."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._data = np.memmap(path, np.uint8, mode="r")
        self._bytes = memoryview(self._data)
        self._position = 0
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        version, tensors, entries = self._unpack("IQQ")
        if version not in VERSIONS:
            raise ValueError(f"version {version} is not known; expected {' or '.join(map(str, VERSIONS))}")
        self.metadata = _by_name("metadata entry", (self._entry() for _ in range(entries)))
        table = _by_name("tensor", ((self._string(), self._place()) for _ in range(tensors)))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}; expected a number of bytes")
        start = -(-self._position // alignment) * alignment
        self.tensors = {name: self._tensor(name, shape, kind, start + at) for name, (shape, kind, at) in table.items()}

    def _take(self, size: int) -> memoryview:
        end = self._position + size
        if end > len(self._bytes):
            raise ValueError("it ends early; copy or download it again")
        part = self._bytes[self._position : end]
        self._position = end
        return part

    def _unpack(self, format: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{format}", self._take(struct.calcsize(f"<{format}")))

    def _string(self) -> str:
        return str(self._take(self._unpack("Q")[0]), "utf-8")

    def _entry(self) -> tuple[str, Any]:
        return self._string(), self._value(*self._unpack("I"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._unpack(_SCALARS[kind])[0]
        if kind != _ARRAY:
            raise ValueError(f"metadata of type {kind} is not known")
        element, count = self._unpack("IQ")
        if element in _SCALARS:
            return list(self._unpack(f"{count}{_SCALARS[element]}"))
        return [self._value(element) for _ in range(count)]

    def _place(self) -> tuple[tuple[int, ...], int, int]:
        """Returns the shape, number of the type, and offset of one tensor."""
        (rank,) = self._unpack("I")
        sizes = self._unpack(f"{rank}Q")
        return sizes[::-1], *self._unpack("IQ")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, start: int) -> GgufTensor:
        type, block, size = _type(name, number)
        if not shape or shape[-1] % block:
            raise ValueError(f"tensor {name} has shape {list(shape)}, and its type {type} has blocks of {block}")
        row = shape[-1] // block * size
        end = start + math.prod(shape[:-1]) * row
        if end > len(self._data):
            raise ValueError(f"it ends before tensor {name} does; copy or download it again")
        return GgufTensor(shape, type, self._data[start:end].reshape(*shape[:-1], row), self._path)


def _by_name(kind: str, entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    named = dict[str, Any]()
    for name, value in entries:
        if name in named:
            raise ValueError(f"{kind} {name} is there twice; which one counts is not known")
        named[name] = value
    return named


def _type(name: str, number: int) -> tuple[str, int, int]:
    """Returns the name of a tensor's type, and numbers and bytes in one of its blocks."""
    import gguf

    try:
        type = gguf.GGMLQuantizationType(number)
    except ValueError:
        raise ValueError(f"tensor {name} has type {number}, which is not known") from None
    return type.name, *gguf.GGML_QUANT_SIZES[type]
