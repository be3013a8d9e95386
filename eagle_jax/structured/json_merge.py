"""Merges JSON schemas that must all hold into one."""

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from eagle_jax.structured.json_keywords import TYPES, read_types

Keywords = dict[str, Any]


def merge_keywords(left: Keywords, right: Keywords, where: str) -> Keywords:
    """Merges the keywords of two schemas; inner schemas are joined with `allOf`.

    Raises:
        ValueError: a keyword has two values that cannot be joined.
    """
    if not left or not right:
        return left or right
    left, right = _with_extra_schemas(left, right), _with_extra_schemas(right, left)
    result = left | right
    for name in left.keys() & right.keys():
        first, second = left[name], right[name]
        if first != second or isinstance(first, bool) != isinstance(second, bool):
            if name not in JOIN_RULES:
                raise ValueError(
                    f"{where} has {name} twice, {json.dumps(first)[:60]} and {json.dumps(second)[:60]}, which are "
                    "not supported together; merge them into one"
                )
            try:
                result[name] = JOIN_RULES[name](first, second)
            except (TypeError, AttributeError):
                raise ValueError(
                    f"{where}.{name}={json.dumps(first)[:60]} with {json.dumps(second)[:60]}; expected two values of "
                    "the keyword's type"
                ) from None
    return result


def _with_extra_schemas(left: Keywords, right: Keywords) -> Keywords:
    """Applies another schema's `additionalProperties` to properties that only the first schema names."""
    extra, named = right.get("additionalProperties", True), right.get("properties", {})
    properties = left.get("properties")
    if extra is True or not isinstance(properties, Mapping) or not isinstance(named, Mapping):
        return left
    return left | {
        "properties": {
            name: schema if name in named else (extra is not False and _both(schema, extra))
            for name, schema in properties.items()
        }
    }


def _both(left: Any, right: Any) -> Any:
    return left if left == right else {"allOf": [left, right]}


def _by_name(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    shared = {name: _both(schema, right[name]) for name, schema in left.items() if name in right}
    return {**left, **right, **shared}


def _types(left: Any, right: Any) -> list[str]:
    first, second = read_types(left, "the schema"), read_types(right, "the schema")
    return [
        kind
        for kind in TYPES
        if (kind in first or kind == "integer" and "number" in first)
        and (kind in second or kind == "integer" and "number" in second)
        and not (kind == "integer" and "number" in first and "number" in second)
    ]


def _canonical(value: Any) -> str:
    """Returns the same text for values that are equal in JSON Schema, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _common_multiple(left: Any, right: Any) -> int | float:
    first, second = (Fraction(repr(value)) for value in (left, right))
    multiple = Fraction(math.lcm(first.numerator, second.numerator), math.gcd(first.denominator, second.denominator))
    return int(multiple) if multiple.denominator == 1 else float(multiple)


def _exclusive(tighter: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def join(left: Any, right: Any) -> Any:
        if isinstance(left, bool) or isinstance(right, bool):
            raise TypeError
        return tighter(left, right)

    return join


# How two values of a keyword are joined.
JOIN_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": lambda left, right: [value for value in left if _canonical(value) in map(_canonical, right)],
    "required": lambda left, right: [*left, *(name for name in right if name not in left)],
    "properties": _by_name,
    "patternProperties": _by_name,
    "uniqueItems": lambda left, right: bool(left or right),
    "multipleOf": _common_multiple,
    **dict.fromkeys(("items", "additionalItems", "additionalProperties", "unevaluatedProperties"), _both),
    "propertyNames": _both,
    **dict.fromkeys(("minimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "maxLength", "maxItems", "maxProperties"), min),
    "exclusiveMinimum": _exclusive(max),
    "exclusiveMaximum": _exclusive(min),
}
