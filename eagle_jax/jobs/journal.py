"""The rows that one process has finished, each a line of JSON, appended in the order in which they were finished."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_jax.jsonl import JsonLines, parsed, whole_lines

SYNC_EVERY = 1.0  # seconds; a row may take less than the disk does
NUMBER = re.compile(rb'\{"row": (\d+), ')


class Journal:
    """An open part of a job's output.

    Args:
        path: made if it is not there.

    Attributes:
        done: numbers of the rows that it holds.

    Raises:
        ValueError: another process is writing into it.
    """

    def __init__(self, path: Path):
        self._file = JsonLines(path, _number, sync_every=SYNC_EVERY)
        self.done = set(self._file.entries)

    def append(self, number: int, record: Mapping[str, Any]) -> None:
        """Writes one finished row."""
        self._file.append({"row": number, **record})
        self.done.add(number)

    def close(self) -> None:
        """Waits for the disk, and lets others in."""
        self._file.close()


def entries(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and line of each finished row, up to the first line that is not whole."""
    return whole_lines(path, _number)


def without_number(line: bytes) -> bytes:
    """The line as it is in the output."""
    return NUMBER.sub(b"{", line, count=1)


def _number(line: bytes, _: int) -> int | None:
    start = NUMBER.match(line)
    return int(start[1]) if start is not None and line.endswith(b"}\n") and parsed(line) is not None else None
