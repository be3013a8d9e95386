"""The journal of finished rows of one process: JSON lines in the order of completion."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_jax.jsonl import JsonLines, complete_lines, parsed

SYNC_EVERY = 1.0  # seconds; syncing every row could take longer than answering it
NUMBER = re.compile(rb'\{"row": (\d+), ')


class Journal:
    """An open part of a job's output.

    Args:
        path: file of the part, created if it does not exist.

    Attributes:
        done: numbers of the rows in it.
        failed: number of rows with an error when it was opened.

    Raises:
        ValueError: another process is writing into it.
    """

    def __init__(self, path: Path):
        self._file = JsonLines(path, _entry, sync_every=SYNC_EVERY)
        by_number = dict(self._file.entries)
        self.done, self.failed = set(by_number), sum(by_number.values())

    def append(self, number: int, record: Mapping[str, Any]) -> None:
        """Writes one finished row."""
        self._file.append({"row": number, **record})
        self.done.add(number)

    def close(self) -> None:
        """Syncs and closes the file, and releases its lock."""
        self._file.close()


def entries(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number and line of each finished row, up to the first incomplete line."""
    return ((number, line) for (number, _), line in complete_lines(path, _entry))


def without_number(line: bytes) -> bytes:
    """Removes the row number from a line, as in the output."""
    return NUMBER.sub(b"{", line, count=1)


def _entry(line: bytes, _: int) -> tuple[int, bool] | None:
    """Returns a row's number and whether it has an error; None if the line is incomplete."""
    start, record = NUMBER.match(line), parsed(line)
    if start is None or not line.endswith(b"}\n") or not isinstance(record, dict):
        return None
    return int(start[1]), record.get("error") is not None
