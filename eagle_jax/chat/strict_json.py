"""JSON as its standard has it."""

import json
import math
from typing import Any


def loads(text: str) -> Any:
    """Returns the value of a JSON text. Raises `ValueError`, also for infinite numbers, NaN or too deep a nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(number: str) -> float:
    raise ValueError(f"{number} is not a finite number")
