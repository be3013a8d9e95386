"""Several processes with one model between them: process 0 keeps the files, and all agree on what is left to do."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from eagle_jax.sharding import any_process, from_first_process


class NullJournal:
    """The journal of a process that writes nothing."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.failed = 0

    def append(self, number: int, record: Mapping[str, Any]) -> None:
        """Somebody else writes it."""

    def close(self) -> None:
        """Does nothing: no file is open."""


def writes_no_files(one_model: bool) -> bool:
    """Returns whether this process leaves the files to another."""
    return one_model and jax.process_index() > 0


def agree_to_begin(begin: Callable[[], bool], digest: str) -> bool:
    """Calls `begin` in process 0 alone and returns its result everywhere. If one process cannot go on none does.

    Args:
        digest: of this process's input, in hexadecimal digits.

    Raises:
        ValueError: process 0 refused, or the processes have different inputs.
    """
    complete, error = False, None
    if not writes_no_files(True):
        try:
            complete = begin()
        except (ValueError, OSError) as refused:
            error = refused
    begun, done, *first = from_first_process(
        np.array([error is None, complete, *bytes.fromhex(digest)], np.uint8)
    ).tolist()
    if error is not None:
        raise error
    if not begun:
        raise ValueError("process 0 refused the job; look at what it says")
    if any_process(bytes(first).hex() != digest):
        raise ValueError("the processes have different inputs; give each of them the same files, in the same order")
    return bool(done)


def agree_on(done: set[int], rows: int) -> set[int]:
    """Returns the finished rows that process 0 knows of."""
    mask = np.zeros(rows, np.uint8)
    mask[sorted(done)] = 1
    return set(np.flatnonzero(from_first_process(mask)).tolist())
