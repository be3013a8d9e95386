"""Files that a kill cannot spoil: whole or not there, appended line by line, written by one process at a time."""

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
except ImportError:  # Windows, where files are not locked: nothing keeps a second process out
    fcntl = None  # type: ignore[assignment]

PART = ".part"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives errors of the operating system inside the block that name no file, such as a full disk's, this one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of `path` when the block has ended well, and not before."""
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}{PART}")
    try:
        with naming(path), part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def hold(file: IO[bytes] | IO[str], what: str | Path, *, wait: bool = False) -> None:
    """Keeps other processes out of an open file until it is closed; a lock ends with its process.

    Args:
        wait: until it is released.

    Raises:
        ValueError: another process holds it; `what` names it in the message.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise ValueError(f"another process is writing into {what}; wait for its end, or name another") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # a file system without locks
            raise


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    if os.name == "nt":  # opens no folders
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def rewrite(to: Path, content: Callable[[], Any]) -> None:
    """Replaces a file by `content()` as JSON, in one step: who reads it sees all of it or what was there before, and of
    two processes that add something at a time neither loses it, as `content` reads the file while no other writes.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.with_suffix(".lock").open("ab") as lock:
        hold(lock, to, wait=True)
        text = json.dumps(content(), indent=1).encode()
        with replacing(to) as file:
            file.write(text)
