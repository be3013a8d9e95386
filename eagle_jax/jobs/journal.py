"""The rows that one process has finished, each a line of JSON, appended in the order in which they were finished."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_jax.durable import hold, sync_folder

SECONDS = 1.0  # between two waits for the disk
NUMBER = re.compile(rb'\{"row": (\d+), ')


class Journal:
    """An open part of a job's output.

    A row is the operating system's as soon as it is appended, so that a process that is killed loses none; at most
    once a second a row waits for the disk too, so that a machine that loses its power has those of one second to answer
    again.

    Args:
        path: made if it is not there. What follows its last whole line is taken away: a kill left it there.

    Attributes:
        done: numbers of the rows that it holds.

    Raises:
        ValueError: another process is writing into it.
    """

    def __init__(self, path: Path):
        self._file = path.open("ab")
        try:
            hold(self._file, path)
            self.done, size = set[int](), 0
            for number, line in entries(path):
                self.done.add(number)
                size += len(line)
            os.truncate(path, size)
            sync_folder(path.parent)
        except BaseException:
            self._file.close()
            raise
        self._waited = time.monotonic()

    def append(self, number: int, record: Mapping[str, Any]) -> None:
        """Writes one finished row."""
        self._file.write(json.dumps({"row": number, **record}, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.done.add(number)
        if time.monotonic() - self._waited > SECONDS:
            os.fsync(self._file.fileno())
            self._waited = time.monotonic()

    def close(self) -> None:
        """Waits for the disk, and lets others in."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def entries(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and line of each finished row, up to the first line that is not whole."""
    with path.open("rb") as file:
        for line in file:
            start = NUMBER.match(line)
            if start is None or not line.endswith(b"}\n") or not _is_json(line):
                return
            yield int(start[1]), line


def without_number(line: bytes) -> bytes:
    """The line as it is in the output."""
    return NUMBER.sub(b"{", line, count=1)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
