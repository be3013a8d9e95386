"""Merges JSON schemas that must all hold into one."""

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from eagle_jax.structured.json_keywords import TYPES, read_types

Keywords = dict[str, Any]


def merge_keywords(one: Keywords, other: Keywords, where: str) -> Keywords:
    """Merges the keywords of two schemas; inner schemas are joined with `allOf`.

    Raises:
        ValueError: a keyword has two values that cannot be joined.
    """
    if not one or not other:
        return one or other
    one, other = _with_extra_schemas(one, other), _with_extra_schemas(other, one)
    result = one | other
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        if first != second or isinstance(first, bool) != isinstance(second, bool):
            if name not in JOIN_RULES:
                raise ValueError(
                    f"{where} has {name} twice, {json.dumps(first)[:60]} and {json.dumps(second)[:60]}, which cannot "
                    "be followed together here; merge them into one"
                )
            try:
                result[name] = JOIN_RULES[name](first, second)
            except (TypeError, AttributeError):
                raise ValueError(
                    f"{where}.{name}={json.dumps(first)[:60]} with {json.dumps(second)[:60]}; expected two values of "
                    "the keyword's type"
                ) from None
    return result


def _with_extra_schemas(one: Keywords, other: Keywords) -> Keywords:
    """Applies another schema's `additionalProperties` to properties that only the first schema names."""
    extra, named = other.get("additionalProperties", True), other.get("properties", {})
    properties = one.get("properties")
    if extra is True or not isinstance(properties, Mapping) or not isinstance(named, Mapping):
        return one
    return one | {
        "properties": {
            name: schema if name in named else (extra is not False and _both(schema, extra))
            for name, schema in properties.items()
        }
    }


def _both(one: Any, other: Any) -> Any:
    return one if one == other else {"allOf": [one, other]}


def _by_name(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    shared = {name: _both(schema, other[name]) for name, schema in one.items() if name in other}
    return {**one, **other, **shared}


def _types(one: Any, other: Any) -> list[str]:
    first, second = read_types(one, "the schema"), read_types(other, "the schema")
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


def _common_multiple(one: Any, other: Any) -> int | float:
    first, second = (Fraction(repr(value)) for value in (one, other))
    multiple = Fraction(math.lcm(first.numerator, second.numerator), math.gcd(first.denominator, second.denominator))
    return int(multiple) if multiple.denominator == 1 else float(multiple)


def _exclusive(tighter: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def join(one: Any, other: Any) -> Any:
        if isinstance(one, bool) or isinstance(other, bool):
            raise TypeError
        return tighter(one, other)

    return join


# How two values of a keyword are joined.
JOIN_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": lambda one, other: [value for value in one if _canonical(value) in map(_canonical, other)],
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "properties": _by_name,
    "patternProperties": _by_name,
    "uniqueItems": lambda one, other: bool(one or other),
    "multipleOf": _common_multiple,
    **dict.fromkeys(("items", "additionalItems", "additionalProperties", "unevaluatedProperties"), _both),
    "propertyNames": _both,
    **dict.fromkeys(("minimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "maxLength", "maxItems", "maxProperties"), min),
    "exclusiveMinimum": _exclusive(max),
    "exclusiveMaximum": _exclusive(min),
}
