"""Checks of arguments that are numbers."""

import math
import numbers
import reprlib
from typing import Any


def whole(name: str, value: Any, least: int) -> int:
    """`value` if it is a whole number (numpy's included) and not below `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a whole number, {least} or more")
    return int(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, numpy's included."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number, numpy's included."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def finite(name: str, value: Any) -> float:
    """`value` as a float if it is a finite number (numpy's included)."""
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}={reprlib.repr(value)}; expected a finite number")
    return number
