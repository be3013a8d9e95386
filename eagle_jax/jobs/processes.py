"""Agreement between several processes that share one model: process 0 writes the files."""

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
        """Does nothing: process 0 writes the row."""

    def close(self) -> None:
        """Does nothing: no file is open."""


def writes_no_files(one_model: bool) -> bool:
    """Returns whether another process writes the files."""
    return one_model and jax.process_index() > 0


def agree_to_begin(begin: Callable[[], bool], digest: str) -> bool:
    """Calls `begin` in process 0 and returns its result in all processes; if one of them fails, all do.

    Args:
        digest: hexadecimal digest of this process's input.

    Raises:
        ValueError: `begin` failed in process 0, or the processes have different inputs.
    """
    complete, error = False, None
    if not writes_no_files(True):
        try:
            complete = begin()
        except (ValueError, OSError) as exception:
            error = exception
    succeeded, is_complete, *first_digest = from_first_process(
        np.array([error is None, complete, *bytes.fromhex(digest)], np.uint8)
    ).tolist()
    if error is not None:
        raise error
    if not succeeded:
        raise ValueError("process 0 rejected the job; see its error message")
    if any_process(bytes(first_digest).hex() != digest):
        raise ValueError("the processes have different inputs; give each of them the same files, in the same order")
    return bool(is_complete)


def agree_on(done: set[int], rows: int) -> set[int]:
    """Returns process 0's set of finished rows in all processes."""
    mask = np.zeros(rows, np.uint8)
    mask[sorted(done)] = 1
    return set(np.flatnonzero(from_first_process(mask)).tolist())
