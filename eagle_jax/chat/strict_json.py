"""Strict JSON parsing."""

import json
import math
from typing import Any


def loads(text: str) -> Any:
    """Parses JSON. Raises `ValueError`, also for infinite numbers, NaN and too deep nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(number: str) -> float:
    raise ValueError(f"{number} is not a finite number")
