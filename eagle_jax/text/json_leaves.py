"""Parts of automata for a schema's constants, strings and numbers."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.text.automaton_parts import Part, automaton, either, literal, repeated, sequence
from eagle_jax.text.byte_automaton import own_automaton, regex_automaton
from eagle_jax.text.json_regexes import (
    CHARACTER,
    FORMATS,
    NUMBER,
    STRING,
    between,
    fractions_between,
    string_matching,
)

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
LARGEST = 10**18  # of a bound
# Those that validators check and that are not known here; others describe alone.
CHECKED_FORMATS = (
    *("regex", "json-pointer", "relative-json-pointer", "uri-template", "uri-reference", "iri", "iri-reference"),
    *("idn-email", "idn-hostname"),
)
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def leaf(regex: str) -> Part:
    """What an expression of this package matches."""
    return automaton(own_automaton(regex))


def literals(said: Mapping[str, Any], where: str) -> Part:
    """`enum` and `const`, of which those of the schema's type remain."""
    values = said["enum"] if "enum" in said else [said["const"]]
    others = said.keys() - {"enum", "const", "type"}
    if others or not isinstance(values, list) or "enum" in said and "const" in said:
        raise ValueError(f"{where} has {names(said)} together; expected enum or const, beside type at most")
    kinds = types(said.get("type", list(TYPES)), where)
    left = [value for value in values if any(_is_a(value, kind) for kind in kinds)]
    if not left:
        raise ValueError(f"{where} allows no value; expected an enum with values of its type")
    return either(*map(_literal, left))


def types(value: Any, where: str) -> list[str]:
    """The types that `type` names, one or several."""
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or not all(kind in TYPES for kind in kinds):
        raise ValueError(f"{where}.type={json.dumps(value)[:60]}; expected one of {', '.join(TYPES)}, or a list")
    return kinds


def _literal(value: Any) -> Part:
    """As JSON writes it, with or without the spaces that `json.dumps` puts between."""
    texts = {json.dumps(value, ensure_ascii=False, separators=signs) for signs in ((",", ":"), (", ", ": "))}
    return either(*map(literal, sorted(texts)))


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or isinstance(value, float) and value.is_integer()
    python = {"object": Mapping, "array": list, "string": str, "number": (int, float), "null": type(None)}
    return kind != "boolean" and isinstance(value, python[kind])  # type: ignore[arg-type]


def string(said: Mapping[str, Any], where: str) -> Part:
    least, most = count(said, "minLength", where), count(said, "maxLength", where)
    if not isinstance(said.get("format", ""), str):
        raise ValueError(f"{where}.format={json.dumps(said['format'])[:60]}; expected the name of one")
    if said.get("format") not in (*FORMATS, *CHECKED_FORMATS):
        said = {name: value for name, value in said.items() if name != "format"}  # it describes, and no more
    forms = [name for name in ("pattern", "format") if name in said]
    if len(forms) + (least is not None or most is not None) > 1:
        raise ValueError(f"{where} has {names(said)} together, which cannot be followed here; keep one of them")
    if "pattern" in said:
        if not isinstance(said["pattern"], str):
            raise ValueError(f"{where}.pattern={json.dumps(said['pattern'])[:60]}; expected a regular expression")
        try:
            return automaton(regex_automaton(string_matching(said["pattern"])))
        except ValueError as error:
            raise ValueError(f"{where}.pattern={said['pattern']!r} {error}") from None
    if "format" in said:
        if said["format"] not in FORMATS:
            raise ValueError(
                f"{where}.format={said['format']!r} cannot be followed here; expected one of {names(FORMATS)}"
            )
        return leaf(f'"{FORMATS[said["format"]]}"')
    if least is not None and most is not None and least > most:
        raise ValueError(f"{where} has minLength={least} above maxLength={most}; expected at most that")
    if least is None and most is None:
        return leaf(STRING)
    return sequence(literal('"'), repeated(leaf(CHARACTER), least or 0, most), literal('"'))


def number(said: Mapping[str, Any], where: str, *, whole: bool) -> Part:
    if not said.keys() & BOUNDS:
        return leaf(between(None, None) if whole else NUMBER)
    low, above = _bound(said, "minimum", "exclusiveMinimum", 1, where)
    high, below = _bound(said, "maximum", "exclusiveMaximum", -1, where)
    try:
        if not whole:
            return leaf(fractions_between(_whole(low, where), _whole(high, where), above=above, below=below))
        least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
        most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
        return leaf(between(least, most))
    except ValueError as error:
        raise ValueError(f"{where}: {error}; expected bounds with something between") from None


def _bound(
    said: Mapping[str, Any], name: str, exclusive: str, inwards: int, where: str
) -> tuple[int | float | None, bool]:
    """The tighter of two bounds, and whether numbers must not be it."""
    bounds = []
    for key, is_exclusive in ((name, False), (exclusive, True)):
        value = said.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
            raise ValueError(f"{where}.{key}={json.dumps(value)[:60]}; expected a number")
        bounds.append((inwards * value, is_exclusive))
    tightest = max(bounds, default=None)
    return (None, False) if tightest is None else (inwards * tightest[0], tightest[1])


def _whole(bound: int | float | None, where: str) -> int | None:
    if bound is not None and bound != int(bound):
        raise ValueError(f"the bound {bound} of a number (not integer) is not whole, which cannot be followed here")
    return None if bound is None else int(bound)


def count(said: Mapping[str, Any], name: str, where: str) -> int | None:
    value = said.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{where}.{name}={json.dumps(value)[:60]}; expected a whole number from 0")
    return value


def constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def names(of: Iterable[str]) -> str:
    return ", ".join(sorted(of)) or "none"
