"""Compiled programs, one per bucket of shapes, and the seconds that compiling them took."""

import collections
import threading
import time
from typing import Any

import jax

from eagle_jax.sharding import placement

MOST = 128  # an engine has a few dozen; trees of callers' own make more, each of some megabytes
_programs: collections.OrderedDict[Any, Any] = collections.OrderedDict()  # the one that was used last is the last
_lock = threading.Lock()  # several engines compile and look up at the same time
_compiled = 0


class _Here(threading.local):
    """Of one thread: from when to when it compiled, by `time.perf_counter`."""

    def __init__(self) -> None:
        self.compiling: list[tuple[float, float]] = []


_here = _Here()


def call(function: Any, *args: Any, **fixed: Any) -> tuple[Any, float]:
    """`function(*args, **fixed)` through its compiled program, and the seconds spent on compiling it (0 when it was
    ready).

    Compiling ahead of the call keeps it out of every timing. The key is all that can change the program: the structure
    of the arguments (static fields included), their shapes, dtypes and places, and the keyword arguments, which are
    static.
    """
    program, seconds = ready(function, *args, **fixed)
    return program(*args), seconds


def ready(function: Any, *args: Any, **fixed: Any) -> tuple[Any, float]:
    """The compiled program that `call` would run, and the seconds spent on compiling it.

    Kept are the `MOST` that were used last.
    """
    global _compiled
    leaves, structure = jax.tree.flatten(args)
    kinds = tuple((leaf.shape, str(leaf.dtype), placement(getattr(leaf, "sharding", None))) for leaf in leaves)
    key = (function, structure, kinds, tuple(sorted(fixed.items())))
    with _lock:
        if key in _programs:
            _programs.move_to_end(key)
            return _programs[key], 0.0
    start = time.perf_counter()
    program = function.lower(*args, **fixed).compile()
    seconds = time.perf_counter() - start
    _here.compiling.append((start, start + seconds))
    with _lock:
        _compiled += 1
        _programs[key] = program
        while len(_programs) > MOST:
            _programs.popitem(last=False)
    return program, seconds


def compiled() -> int:
    """How many programs have been compiled by now."""
    return _compiled


def seconds_since(moment: float) -> float:
    """Seconds since a moment of `time.perf_counter`, without those that this thread spent on compiling."""
    compiling = sum(end - max(start, moment) for start, end in _here.compiling if end > moment)
    return time.perf_counter() - moment - compiling
