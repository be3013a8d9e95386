"""Crash-safe files of JSON records, one per line: locked, appended to, repaired when opened."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from eagle_jax.durable import lock_file, name_path_in_errors, sync_folder

Entry = TypeVar("Entry")
Read = Callable[[bytes, int], Entry | None]  # of a line (with its end, if any) and its number, from 1


class JsonLines(Generic[Entry]):
    """A file that one process at a time appends records to.

    An appended record is handed to the operating system at once, so a killed process loses none. A half-written record
    is removed when the file is opened again.

    Args:
        path: the file, created if it does not exist.
        read: parses a line into an entry. None means that the line is damaged or unfinished: it is removed, with all
            that follows. ValueError refuses the file.
        sync_every: seconds between two waits for the disk, which make records survive a power failure. 0 waits after
            every record.

    Attributes:
        entries: the entries of the lines that the file had when it was opened.
        cut: number of bytes that were removed then.

    Raises:
        ValueError: another process is writing into the file, or `read` refuses it. Nothing is changed.
    """

    def __init__(self, path: Path, read: Read[Entry], *, sync_every: float = 0.0):
        self._path, self._file = path, path.open("ab")
        self._sync_every, self._synced_at = sync_every, time.monotonic()
        try:
            lock_file(self._file, path)
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
        """Appends records, with one wait for the disk if that is due."""
        with name_path_in_errors(self._path):
            self._file.write(b"".join(map(to_line, records)))
            self._file.flush()
        if time.monotonic() - self._synced_at >= self._sync_every:
            self._sync()

    def close(self) -> None:
        """Waits for the disk and releases the lock."""
        if not self._file.closed:
            self._sync()
            self._file.close()

    def __enter__(self) -> "JsonLines[Entry]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sync(self) -> None:
        with name_path_in_errors(self._path):
            os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()


def complete_lines(path: Path, read: Read[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Yields entry and line for each line of a file, up to the first damaged or unfinished line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            entry = read(line, number)
            if entry is None or not line.endswith(b"\n"):
                return
            yield entry, line


def to_line(record: Mapping[str, Any]) -> bytes:
    """Formats a record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def parsed(line: bytes) -> Any:
    """Parses a line of JSON; None if it is not valid."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
