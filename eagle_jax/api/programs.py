"""Compiled programs, one per bucket of shapes, and the seconds that compiling them took."""

import time
from typing import Any

import jax

from eagle_jax.sharding import placement

_programs: dict[Any, Any] = {}


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
    """The compiled program that `call` would run, and the seconds spent on compiling it."""
    leaves, structure = jax.tree.flatten(args)
    kinds = tuple((leaf.shape, str(leaf.dtype), placement(getattr(leaf, "sharding", None))) for leaf in leaves)
    key = (function, structure, kinds, tuple(sorted(fixed.items())))
    seconds = 0.0
    if key not in _programs:
        start = time.perf_counter()
        _programs[key] = function.lower(*args, **fixed).compile()
        seconds = time.perf_counter() - start
    return _programs[key], seconds


def compiled() -> int:
    """How many programs have been compiled by now."""
    return len(_programs)
