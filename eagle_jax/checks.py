"""Checks of arguments that are numbers, and of settings that must be those of before; values in messages."""

import json
import math
import numbers
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any


def whole_number(name: str, value: Any, least: int) -> int:
    """Returns `value` if it is a whole number (numpy's included) and not below `least`."""
    if not is_whole_number(value) or value < least:
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a whole number, {least} or more")
    return int(value)


def is_whole_number(value: Any) -> bool:
    """Returns whether it is a whole number, numpy's included."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether it is a real number, numpy's included."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def finite(name: str, value: Any) -> float:
    """Returns `value` as a float if it is a finite number (numpy's included)."""
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a finite number")
    return number


def differences(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Returns how two sets of settings differ, as `seed was 1 and is 2 now; tree was not set and is ...`; empty if
    nowhere.

    Args:
        names: names of the settings that are compared; all by default.
    """
    compared = dict.fromkeys((*before, *now)) if names is None else names
    other = [name for name in compared if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))} now" for name in other)


def check_same_settings(
    begun: Any, before: Mapping[str, Any], now: Mapping[str, Any], otherwise: str, names: Iterable[str] | None = None
) -> None:
    """Refuses to go on with a file or folder that was begun with other settings, since results would be mixed.

    Args:
        begun: its path.
        before, now, names: as in `differences`.
        otherwise: what else one can do, as "name another folder".

    Raises:
        ValueError: a setting differs.
    """
    if other := differences(before, now, names):
        raise ValueError(f"{begun} was begun with other settings: {other}; give the same, or {otherwise}")


def cut(text: str, most: int = 60) -> str:
    """Returns the beginning of a text in a message, if it is longer than so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def as_json(value: Any) -> str:
    """Returns a value in a message, as JSON writes it, cut."""
    return cut(json.dumps(value, default=repr))


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
