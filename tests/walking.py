"""Which functions of the package are being called."""

import inspect
import itertools
from collections.abc import Sequence

Call = tuple[str, str]  # room and function


def walk() -> tuple[Call, ...]:
    """Calls of the package's functions, outermost first."""
    frames = [(frame.frame.f_globals.get("__name__", ""), frame.function) for frame in reversed(inspect.stack())]
    return tuple((module.split(".")[1], function) for module, function in frames if module.startswith("eagle_jax."))


def rooms(calls: Sequence[Call]) -> list[str]:
    """The rooms of a walk, one after another."""
    return [room for room, _ in itertools.groupby(room for room, _ in calls)]
