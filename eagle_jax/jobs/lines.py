"""The lines of a job's input files, numbered consecutively, and a digest that identifies these files."""

import codecs
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Line:
    """One line that is not blank.

    Attributes:
        number: number among the lines of all files, in the given order, from 0.
        place: file and line, `questions.jsonl:7`; with the folder if two files of the job have the same name.
        content: bytes of the line.
    """

    number: int
    place: str
    content: bytes


@dataclasses.dataclass(frozen=True)
class Contents:
    """Summary of the input files.

    Attributes:
        rows: lines that are not blank, in all files.
        digest: SHA-256 of the files, in hexadecimal digits.
    """

    rows: int
    digest: str


def lines_of(files: Sequence[Path]) -> Iterator[Line]:
    """Yields the lines of all files, with one line in memory at a time."""
    number, names = 0, [path.name for path in files]
    for path in files:
        name = path.name if names.count(path.name) == 1 else str(path)
        with path.open("rb") as file:
            for line_number, content in enumerate(file, start=1):
                if _is_row(content):
                    yield Line(number, f"{name}:{line_number}", content)
                    number += 1


def read_contents(files: Sequence[Path]) -> Contents:
    """Reads the files once and returns their summary.

    Raises:
        OSError: a file cannot be read.
        ValueError: a path is not a regular file, or no file has a row.
    """
    rows, digest = 0, hashlib.sha256()
    for path in files:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file; expected one that can be read again after a crash")
        with path.open("rb") as file:
            for content in file:
                digest.update(content)
                rows += _is_row(content)
        digest.update(b"\0")  # where one file ends and the next begins
    if not rows:
        raise ValueError(f"no rows in {', '.join(map(str, files))}; expected one JSON object per line")
    return Contents(rows, digest.hexdigest())


def _is_row(content: bytes) -> bool:
    """Returns whether a line has anything but white space and a byte order mark."""
    return bool(content.removeprefix(codecs.BOM_UTF8).strip())
