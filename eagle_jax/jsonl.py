"""Files of JSON records, one a line, that a kill cannot spoil: locked, appended to, repaired when opened."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from eagle_jax.durable import hold, naming, sync_folder

Entry = TypeVar("Entry")
Read = Callable[[bytes, int], Entry | None]  # of a line, its end included if it has one, and its number from 1


class JsonLines(Generic[Entry]):
    """A file that one process at a time appends records to.

    A record is the operating system's as soon as it is appended, so that a process that is killed loses none. One that
    was being written is cut off when the file is opened again.

    Args:
        path: created if it does not exist.
        read: what to remember of a line. None says that it is damaged or unfinished: it is cut off with all that
            follows. ValueError refuses the file.
        sync_every: seconds between two waits for the disk, after which a machine that loses its power has the records
            too. 0 waits after every one.

    Attributes:
        entries: what `read` gave for the lines that the file held when it was opened.
        cut: bytes that were cut off then.

    Raises:
        ValueError: another process is writing into it, or `read` refuses it. Nothing is changed.
    """

    def __init__(self, path: Path, read: Read[Entry], *, sync_every: float = 0.0):
        self._path, self._file = path, path.open("ab")
        self._sync_every, self._synced_at = sync_every, time.monotonic()
        try:
            hold(self._file, path)
            self.entries, size = list[Entry](), 0
            for entry, line in complete_lines(path, read):
                self.entries.append(entry)
                size += len(line)
            self.cut = os.path.getsize(path) - size
            os.truncate(path, size)
            sync_folder(path.parent)
        except BaseException:
            self._file.close()
            raise

    def append(self, *records: Mapping[str, Any]) -> None:
        """Writes records, all with one wait for the disk if one is due."""
        with naming(self._path):
            self._file.write(b"".join(map(to_line, records)))
            self._file.flush()
        if time.monotonic() - self._synced_at >= self._sync_every:
            self._sync()

    def close(self) -> None:
        """Waits for the disk, and lets other processes in."""
        if not self._file.closed:
            self._sync()
            self._file.close()

    def __enter__(self) -> "JsonLines[Entry]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sync(self) -> None:
        with naming(self._path):
            os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()


def complete_lines(path: Path, read: Read[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Yields `read(line)` and the line for each line of a file, up to the first that is damaged or has no end."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            entry = read(line, number)
            if entry is None or not line.endswith(b"\n"):
                return
            yield entry, line


def to_line(record: Mapping[str, Any]) -> bytes:
    """Returns a record as a line."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def parsed(line: bytes) -> Any:
    """Returns the JSON value of a line; None if there is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
