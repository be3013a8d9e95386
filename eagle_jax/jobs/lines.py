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
        number: among those of all files, in the order given, from 0.
        place: file and line, `questions.jsonl:7`; with folders where two files of the job have one name.
        content: its bytes.
    """

    number: int
    place: str
    content: bytes


@dataclasses.dataclass(frozen=True)
class Contents:
    """What the input files hold.

    Attributes:
        rows: lines that are not blank, in all files.
        digest: SHA-256 of the files, in hexadecimal digits.
    """

    rows: int
    digest: str


def lines_of(files: Sequence[Path]) -> Iterator[Line]:
    """Yields the lines of all files; only one at a time is in memory."""
    number, names = 0, [path.name for path in files]
    for path in files:
        name = path.name if names.count(path.name) == 1 else str(path)
        with path.open("rb") as file:
            for at, content in enumerate(file, start=1):
                if _is_row(content):
                    yield Line(number, f"{name}:{at}", content)
                    number += 1


def contents_of(files: Sequence[Path]) -> Contents:
    """Reads the files through once.

    Raises:
        OSError: one cannot be read.
        ValueError: one is no file, or none has a row.
    """
    rows, digest = 0, hashlib.sha256()
    for path in files:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no file; expected one that can be read again after a kill")
        with path.open("rb") as file:
            for content in file:
                digest.update(content)
                rows += _is_row(content)
        digest.update(b"\0")  # where one file ends and the next begins
    if not rows:
        raise ValueError(f"no rows in {', '.join(map(str, files))}; expected one JSON object a line")
    return Contents(rows, digest.hexdigest())


def _is_row(content: bytes) -> bool:
    """Returns whether a line holds anything but the mark that some editors begin a file with."""
    return bool(content.removeprefix(codecs.BOM_UTF8).strip())
