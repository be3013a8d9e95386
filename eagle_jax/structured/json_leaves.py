"""Parts of automata for a schema's constants and numbers."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from eagle_jax.structured.automaton_builder import Part
from eagle_jax.structured.automaton_parts import automaton, either, literal
from eagle_jax.structured.json_keywords import BOUNDS, KEYWORDS, TYPES, join_names, read_count, read_types
from eagle_jax.structured.json_numbers import Bound, numbers
from eagle_jax.structured.json_regexes import NUMBER
from eagle_jax.structured.regex_automaton import cached_automaton

MAX_BOUND = Decimal("1e400")


def leaf(regex: str) -> Part:
    """Matches one of this package's regular expressions."""
    return automaton(cached_automaton(regex))


def literals(keywords: Mapping[str, Any], where: str) -> Part:
    """Matches those values of an `enum` that the schema's other keywords allow."""
    values, other_keywords = keywords["enum"], {name: value for name, value in keywords.items() if name != "enum"}
    if not isinstance(values, list):
        raise ValueError(f"{where}.enum={json.dumps(values)[:60]}; expected a list")
    allowed = [value for value in values if _is_valid(value, other_keywords, where)]
    if not allowed:
        raise ValueError(f"{where} allows no value; expected an enum with values of the type and within the bounds")
    return either(*map(literal_of, allowed))


def literal_of(value: Any) -> Part:
    """Matches the JSON text of a value, with or without the spaces that `json.dumps` inserts."""
    texts = {json.dumps(value, ensure_ascii=False, separators=signs) for signs in ((",", ":"), (", ", ": "))}
    return either(*map(literal, sorted(texts)))


def _is_valid(value: Any, keywords: Mapping[str, Any], where: str) -> bool:
    """Returns whether a value has an allowed type and satisfies the keywords for that type."""
    if not any(_has_type(value, kind) for kind in read_types(keywords.get("type", list(TYPES)), where)):
        return False
    kind = next(kind for kind in TYPES if _has_type(value, kind))
    if kind in ("object", "array"):
        unsupported = keywords.keys() & KEYWORDS[kind]
        if unsupported:
            raise ValueError(
                f"{where} has enum or const with {join_names(unsupported)}, which is not supported; leave it out"
            )
    if kind == "string":
        min_length, max_length = read_count(keywords, "minLength", where) or 0, read_count(keywords, "maxLength", where)
        if len(value) < min_length or max_length is not None and len(value) > max_length:
            return False
        try:
            return "pattern" not in keywords or re.search(keywords["pattern"], value) is not None
        except (re.error, TypeError) as error:
            raise ValueError(
                f"{where}.pattern={keywords['pattern']!r} {error}; expected a regular expression"
            ) from None
    if kind in ("integer", "number"):
        low, high, multiple = _range(keywords, where)
        exact = Decimal(repr(value))
        return (
            (low is None or exact > low.value or exact == low.value and low.is_included)
            and (high is None or exact < high.value or exact == high.value and high.is_included)
            and (multiple is None or Fraction(exact) % multiple == 0)
        )
    return True


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or isinstance(value, float) and value.is_integer()
    python = {"object": Mapping, "array": list, "string": str, "number": (int, float), "null": type(None)}
    return kind != "boolean" and isinstance(value, python[kind])  # type: ignore[arg-type]


def number(keywords: Mapping[str, Any], where: str, *, integers: bool) -> Part:
    """Matches numbers within bounds, without exponents; any number where there are none."""
    if not integers and not keywords.keys() & BOUNDS:
        return leaf(NUMBER)
    low, high, multiple = _range(keywords, where)
    if integers and multiple is not None:
        multiple = Fraction(multiple.numerator)  # the smallest integer multiple
    try:
        part = numbers(low, high, integers=integers, multiple_of=multiple)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if part is None:
        kind = "whole number" if integers else "number"
        bounds = [str(keywords.get(name, keywords.get(exclusive, "any"))) for name, exclusive in BOUND_KEYWORDS]
        multiple_text = "" if multiple is None else f" and a multiple of {keywords['multipleOf']}"
        raise ValueError(f"{where}: no {kind} is from {bounds[0]} to {bounds[1]}{multiple_text}; expected wider bounds")
    return part


BOUND_KEYWORDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def _range(keywords: Mapping[str, Any], where: str) -> tuple[Bound | None, Bound | None, Fraction | None]:
    """Returns the lower and upper bound of numbers, and their common divisor (`multipleOf`)."""
    low, high = (_bound(keywords, *ends, where) for ends in BOUND_KEYWORDS)
    multiple = _decimal(keywords, "multipleOf", where)
    if multiple is not None and multiple <= 0:
        raise ValueError(f"{where}.multipleOf={keywords['multipleOf']}; expected a number above 0")
    return low, high, None if multiple is None else Fraction(multiple)


def _bound(keywords: Mapping[str, Any], name: str, exclusive: str, where: str) -> Bound | None:
    """Returns the tighter of two bounds; `exclusive` may be a flag that excludes the other one (OpenAPI 3.0)."""
    is_excluded = keywords.get(exclusive) is True
    value = _decimal(keywords, name, where)
    limit = None if isinstance(keywords.get(exclusive), bool) else _decimal(keywords, exclusive, where)
    if value is None or limit is not None and (limit >= value if name == "minimum" else limit <= value):
        return None if limit is None else Bound(limit, False)
    return Bound(value, not is_excluded)


def _decimal(keywords: Mapping[str, Any], name: str, where: str) -> Decimal | None:
    value = keywords.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(Decimal(repr(value))) < MAX_BOUND:
        raise ValueError(f"{where}.{name}={json.dumps(value)[:60]}; expected a number between -1e400 and 1e400")
    return Decimal(repr(value))
