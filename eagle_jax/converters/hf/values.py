"""Reads values of a `config.json` and checks their types."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Refusals:
    """The problems of a file, collected to be raised all at once."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}

    def of(self, read: Callable[..., T], *args: Any) -> T | None:
        """Calls `read` and returns its result; if it raises ValueError, notes the problem and returns None."""
        try:
            return read(*args)
        except ValueError as error:
            self._problems[str(error)] = None
            return None

    def check(self) -> None:
        """Raises ValueError with every problem once, if there are any."""
        if self._problems:
            raise ValueError("; ".join(self._problems))


def optional_integer(entries: Mapping[str, Any], name: str) -> int | None:
    """Returns an integer, or None if it is missing or null."""
    return None if entries.get(name) is None else integer(entries, name)


def integer(entries: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Returns an integer, or `default` if it is missing or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"the config has no {name}; expected a whole number")
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise ValueError(f"{name}={value!r}; expected a whole number below 2**31")
    return value


def number(entries: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Returns a float, or `default` if the entry is missing or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None or not is_number(value):
        raise ValueError(f"{name}={value!r}; expected a number")
    return float(value)


def flag(entries: Mapping[str, Any], name: str, default: bool) -> bool:
    """Returns a bool, or `default` if it is missing or null."""
    value = entries.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected true or false")
    return value


def is_number(value: Any) -> bool:
    """Returns whether `value` is a finite number within a float's range."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
