"""Fields of a request's body: each is checked as it is taken, and what nobody took is refused."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from eagle_jax.serving.errors import Refused

T = TypeVar("T")
Check = Callable[[str, Any], T]


class Fields:
    """The fields of one JSON object. null is the same as nothing.

    Args:
        where: begins the names of its fields in messages.
        ignored: takes the names of fields that nobody knows; without it they are refused.
    """

    def __init__(self, body: Mapping[str, Any], where: str = "", ignored: list[str] | None = None):
        self._left, self._where, self._ignored = dict(body), where, ignored

    def inside(self, where: str, body: Mapping[str, Any]) -> "Fields":
        """The fields of an object inside this one."""
        return Fields(body, where, self._ignored)

    def take(self, name: str, check: Check[T], default: T) -> T:
        value = self._left.pop(name, None)
        return default if value is None else check(self._where + name, value)

    def must(self, name: str, check: Check[T]) -> T:
        value = self._left.pop(name, None)
        if value is None:
            raise wrong(self._where + name, f"{self._where}{name} is missing")
        return check(self._where + name, value)

    def ignore(self, names: Mapping[str, Check[Any]]) -> None:
        """Fields that say nothing about the answer."""
        for name, check in names.items():
            self.take(name, check, None)

    def only(self, supported: Mapping[str, Sequence[Any]]) -> None:
        """Refuses fields that are known and not supported, unless they have one of the values that change nothing."""
        for name, values in supported.items():
            value = self._left.pop(name, None)
            if value is not None and not any(_same(value, other) for other in values):
                leave = f"; leave it out, or give {', '.join(map(json.dumps, values))}" if values else "; leave it out"
                raise wrong(self._where + name, f"{self._where}{name}={_short(value)} is not supported here{leave}")

    def end(self) -> list[str]:
        """Refuses what was not taken; or the names of what was passed over so far."""
        if self._ignored is not None:
            self._ignored += [self._where + name for name in self._left]
            return self._ignored
        if self._left:
            names = ", ".join(repr(self._where + name)[:80] for name in list(self._left)[:5])
            one = len(self._left) == 1
            raise wrong(
                self._where + next(iter(self._left))[:80],
                f"{'field' if one else 'fields'} {names} {'is' if one else 'are'} not known here; leave "
                f"{'it' if one else 'them'} out",
            )
        return []


def wrong(name: str, message: str) -> Refused:
    return Refused(400, message, param=name)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, f"{name}={_short(value)}; expected text")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, f"{name}={_short(value)}; expected true or false")
    return value


def number(low: float, high: float) -> Check[float]:
    """A number from `low` to `high`."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise wrong(name, f"{name}={_short(value)}; expected a number from {low:g} to {high:g}")
        return float(value)

    return check


def whole(low: int, high: int) -> Check[int]:
    """A whole number from `low` to `high`."""

    def check(name: str, value: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not low <= value <= high:
            raise wrong(name, f"{name}={_short(value)}; expected a whole number from {low} to {high}")
        return int(value)

    return check


def listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(name, f"{name}={_short(value)}; expected a list that is not empty")
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, f"{name}={_short(value)}; expected an object")
    return value


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _short(value: Any) -> str:
    """A value in a message: what is long or deep is cut."""
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    if isinstance(value, list):
        return "[...]" if value else "[]"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very large number"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
