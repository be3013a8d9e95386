"""The values of a `config.json`: each is of the kind expected, and no key goes unread."""

from collections.abc import Mapping
from typing import Any


def integer(entries: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"the config has no {name}; expected a whole number")
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise ValueError(f"{name}={value!r}; expected a whole number below 2**31")
    return value


def number(entries: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None or not is_number(value):
        raise ValueError(f"{name}={value!r}; expected a number")
    return float(value)


def flag(entries: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected true or false")
    return value


def account(
    entries: Mapping[str, Any], read: frozenset[str], fixed: Mapping[str, tuple[Any, ...]], ignored: frozenset[str]
) -> None:
    """Refuses what is not understood: a key that nobody reads may well change the numbers."""
    for name, value in entries.items():
        if name in fixed:
            if value not in fixed[name]:
                raise ValueError(f"{name}={value!r} is not supported; expected {fixed[name][0]!r}")
        elif name not in read and name not in ignored:
            raise ValueError(
                f"config key {name}={value!r} is not known and might change the model; remove it if it does not"
            )


def is_number(value: Any) -> bool:
    """Whether it is a number that a float holds; JSON's `NaN` and `Infinity` are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
