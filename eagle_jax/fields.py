"""Reads fields of JSON objects: each is checked, and unknown fields are refused."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from eagle_jax.checks import as_json

T = TypeVar("T")
Check = Callable[[str, Any], T]


class FieldError(ValueError):
    """A field with a wrong value, in one sentence.

    Attributes:
        param: name of the field.
    """

    def __init__(self, message: str, param: str):
        super().__init__(message)
        self.param = param


class Fields:
    """The fields of one JSON object; null counts as absent.

    Nested objects are read through `inside` and `each`: they share `ignore_unknown`, and `end` covers them too.

    Args:
        ignore_unknown: whether unknown fields are ignored instead of refused.
    """

    def __init__(self, body: Mapping[str, Any], *, ignore_unknown: bool):
        self._left, self._where = dict(body), ""
        self._ignored: list[str] | None = [] if ignore_unknown else None
        self._children: list[Fields] = []

    def inside(self, name: str, value: Any) -> "Fields":
        """Returns the fields of `value`, the nested object `name`."""
        fields = Fields(mapping(self._where + name, value), ignore_unknown=False)
        fields._where, fields._ignored = f"{self._where}{name}.", self._ignored
        self._children.append(fields)
        return fields

    def each(self, name: str, value: Any) -> "list[Fields]":
        """Returns the fields of each object in `value`, the nested list `name`."""
        if not isinstance(value, list):
            raise wrong(self._where + name, f"{self._where}{name}={_short(value)}; expected a list of objects")
        return [self.inside(f"{name}[{i}]", entry) for i, entry in enumerate(value)]

    def object(self, name: str) -> "Fields":
        """Takes an optional nested object and returns its fields."""
        empty: dict[str, Any] = {}
        return self.inside(name, self.take(name, mapping, empty))

    def take(self, name: str, check: Check[T], default: T) -> T:
        value = self._left.pop(name, None)
        return default if value is None else check(self._where + name, value)

    def require(self, name: str, check: Check[T]) -> T:
        value = self._left.pop(name, None)
        if value is None:
            raise wrong(self._where + name, f"{self._where}{name} is missing")
        return check(self._where + name, value)

    def ignore(self, names: Mapping[str, Check[Any]]) -> None:
        """Checks fields that do not affect the answer, and drops them."""
        for name, check in names.items():
            self.take(name, check, None)

    def only(self, supported: Mapping[str, Sequence[Any]]) -> None:
        """Refuses known but unsupported fields, unless they have one of the values that change nothing."""
        for name, values in supported.items():
            value = self._left.pop(name, None)
            if value is not None and not any(_same(value, other) for other in values):
                leave = f"; leave it out, or give {', '.join(map(json.dumps, values))}" if values else "; leave it out"
                raise wrong(self._where + name, f"{self._where}{name}={_short(value)} is not supported here{leave}")

    def wrong(self, name: str, message: str) -> FieldError:
        """Returns the error of a field, whose name begins the message."""
        return wrong(self._where + name, f"{self._where}{name}{message}")

    def end(self) -> list[str]:
        """Refuses fields that were not taken, nested ones too; returns their names if unknown fields are ignored."""
        for child in self._children:
            child.end()
        if self._ignored is not None:
            self._ignored += [self._where + name for name, value in self._left.items() if value is not None]
            return self._ignored
        left = [name for name, value in self._left.items() if value is not None]
        if left:
            names = ", ".join(repr(self._where + name)[:80] for name in left[:5])
            one = len(left) == 1
            raise wrong(
                self._where + left[0][:80],
                f"{'field' if one else 'fields'} {names} {'is' if one else 'are'} not known here; leave "
                f"{'it' if one else 'them'} out",
            )
        return []


def wrong(name: str, message: str) -> FieldError:
    return FieldError(message, name)


def anything(name: str, value: Any) -> Any:
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, f"{name}={_short(value)}; expected text")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, f"{name}={_short(value)}; expected true or false")
    return value


def number(low: float, high: float) -> Check[float]:
    """Returns a check for a number from `low` to `high`."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise wrong(name, f"{name}={_short(value)}; expected a number from {low:g} to {high:g}")
        return float(value)

    return check


def whole_number(low: int, high: int) -> Check[int]:
    """Returns a check for a whole number from `low` to `high`."""

    def check(name: str, value: Any) -> int:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not low <= value <= high:
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
    """Formats a value for a message; long or nested values are shortened."""
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    if isinstance(value, list):
        return "[...]" if value else "[]"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very large number"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return as_json(value)
