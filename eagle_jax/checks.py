"""Checks of numeric arguments and of equal settings, and how messages show values."""

import json
import math
import numbers
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any


def whole_number(name: str, value: Any, minimum: int) -> int:
    """Returns `value` as an int. Raises ValueError unless it is a whole number of at least `minimum`."""
    if not is_whole_number(value) or value < minimum:
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a whole number, {minimum} or more")
    return int(value)


def is_whole_number(value: Any) -> bool:
    """Returns whether `value` is a whole number, of Python or numpy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether `value` is a real number, of Python or numpy."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def finite(name: str, value: Any) -> float:
    """Returns `value` as a float. Raises ValueError unless it is a finite number."""
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a finite number")
    return number


def differences(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Describes how settings differ: `seed was 1 and is 2 now; tree was not set and ...`; empty if they are equal.

    Args:
        names: the settings to compare; all by default.
    """
    compared = dict.fromkeys((*before, *now)) if names is None else names
    changed = [name for name in compared if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))} now" for name in changed)


def check_same_settings(
    path: Any, before: Mapping[str, Any], now: Mapping[str, Any], otherwise: str, names: Iterable[str] | None = None
) -> None:
    """Refuses to continue a file or folder with other settings, which would mix results.

    Args:
        path: the file or folder.
        before, now, names: as in `differences`.
        otherwise: the alternative to equal settings in the message, such as "name another folder".

    Raises:
        ValueError: a setting differs.
    """
    if changes := differences(before, now, names):
        raise ValueError(f"{path} was begun with other settings: {changes}; give the same, or {otherwise}")


def cut(text: str, max_characters: int = 60) -> str:
    """Shortens a text for a message: at most `max_characters`, with "..." for the rest."""
    return text if len(text) <= max_characters else text[: max_characters - 3] + "..."


def as_json(value: Any) -> str:
    """Formats a value for a message: JSON, shortened."""
    return cut(json.dumps(value, default=repr))


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
