"""Crash-safe files: replaced as a whole, and written by one process at a time."""

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows: files are not locked, so nothing keeps a second process out
    fcntl = None  # type: ignore[assignment]

PART = ".part"  # suffix of a file that is not complete


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Adds `path` to each OSError of the block that names no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` if the block succeeds."""
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}{PART}")
    try:
        with name_path_in_errors(path), part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def lock_file(file: IO[bytes] | IO[str], what: str | Path, *, wait: bool = False) -> None:
    """Locks an open file against other processes until it is closed or this process ends.

    Args:
        what: name of the file in the message.
        wait: waits for the lock instead of raising.

    Raises:
        ValueError: another process holds the lock.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise ValueError(f"another process is writing into {what}; wait until it ends, or name another") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # a file system without locks
            raise


def sync_folder(folder: Path) -> None:
    """Waits until the entries of a folder are on the disk."""
    if os.name == "nt":  # folders cannot be opened
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def update_json(to: Path, content: Callable[[], Any]) -> None:
    """Replaces a file with `content()` as JSON, atomically.

    `content` is called under a lock, so it may read the file and add to it: no update of another process is lost.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.with_suffix(".lock").open("ab") as lock:
        lock_file(lock, to, wait=True)
        text = json.dumps(content(), indent=1).encode()
        with atomic_write(to) as file:
            file.write(text)
