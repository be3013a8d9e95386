"""Parts of automata for a schema's objects and arrays."""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_parts import either, in_order, literal, optional, repeated, selection, sequence
from eagle_jax.structured.json_keywords import Place, count, entries
from eagle_jax.structured.json_leaves import leaf, literal_of
from eagle_jax.structured.json_regexes import NUMBER, STRING

SPACE = optional(literal(" "))
COMMA, COLON = (sequence(SPACE, literal(sign), SPACE) for sign in ",:")
MOST_UNIQUE = 6  # values of which a list has each at most once, in any order; more come in the schema's order


@runtime_checkable
class Writer(Protocol):
    """Makes parts of schemas."""

    def write(self, schemas: list[Any], place: Place) -> Part | None:
        """Returns the part of the values that fit all of several schemas; None if there are none."""

    def values(self, schema: Any, place: Place) -> list[Any] | None:
        """Returns the values that a schema lists; None if it does not."""


def any_value(depth: int) -> Part:
    """Matches any value that nests at most `depth` deep."""
    scalars = leaf(STRING), leaf(NUMBER), literal("true"), literal("false"), literal("null")
    if not depth:
        return either(*scalars)
    inner = any_value(depth - 1)
    return either(*scalars, object_of(inner), _array_of(inner))


def object_of(value: Part, key: Part | None = None, least: int = 0, most: int | None = None) -> Part:
    """Matches objects with any keys, or those that a part has, `least` to `most` of them."""
    return _between("{", repeated(sequence(key or leaf(STRING), COLON, value), least, most, COMMA), "}")


def _array_of(value: Part, least: int = 0, most: int | None = None) -> Part:
    return _between("[", repeated(value, least, most, COMMA), "]")


def _between(opening: str, inside: Part, closing: str) -> Part:
    return sequence(literal(opening), SPACE, inside, SPACE, literal(closing))


def objects(keywords: Mapping[str, Any], place: Place, writer: Writer) -> Part | None:
    """Matches objects with the properties that a schema names, in its order, or with any where it names none."""
    properties, required = _named(keywords, place)
    least, most = count(keywords, "minProperties", place.name) or 0, count(keywords, "maxProperties", place.name)
    if not properties:
        return _map(keywords, place, writer, least, most)
    keys = _keys(keywords, place, writer)
    allowed = None if keys is None else automaton_of(keys, place.name)
    written: dict[str, Part] = {}
    for name, schemas in properties.items():
        key = json.dumps(name, ensure_ascii=False).encode()
        if allowed is None or allowed.accepts(key):
            value = writer.write(schemas, place.below("properties", name))
            if value is not None:
                written[name] = sequence(literal_of(name), COLON, value)
        if name in required and name not in written:
            return None
    must = [name in required for name in written]
    if least > max(1, sum(must)) or most is not None and most < len(written):
        raise ValueError(
            f"{place.name} has minProperties={least} or maxProperties={most} beside {len(written)} named properties, "
            "which cannot be followed here; require some of them instead"
        )
    if least > len(written):
        return None
    return _between("{", in_order([*written.values()], must, COMMA, least=min(least, 1)), "}")


def _named(keywords: Mapping[str, Any], place: Place) -> tuple[dict[str, list[Any]], set[str]]:
    """Returns the schemas of each property that a schema names or requires, and which it requires."""
    where = place.name
    named, required = entries(keywords, "properties", dict, where), entries(keywords, "required", list, where)
    patterns, extra = entries(keywords, "patternProperties", dict, where), keywords.get("additionalProperties", True)
    properties: dict[str, list[Any]] = {}
    for name in [*named, *required]:
        if not isinstance(name, str):
            raise ValueError(f"{where}.required has {json.dumps(name)[:60]}; expected names of properties")
        try:
            matching = [schema for pattern, schema in patterns.items() if re.search(pattern, name)]
        except re.error as error:
            raise ValueError(f"{where}.patternProperties has a pattern that is none: {error}; correct it") from None
        schemas = [named[name], *matching] if name in named else matching or [extra]
        if name in required and name not in named and schemas == [False]:
            raise ValueError(f"{where} requires {name!r}, which it does not allow; name it in properties")
        properties[name] = schemas
    return properties, set(required)


def _keys(keywords: Mapping[str, Any], place: Place, writer: Writer) -> Part | None:
    """Returns the part for the keys that `propertyNames` allows; None without that keyword."""
    if "propertyNames" not in keywords:
        return None
    keys = writer.write([{"type": "string"}, keywords["propertyNames"]], place.below("propertyNames"))
    return sequence() if keys is None else keys  # the empty text is no key


def _map(keywords: Mapping[str, Any], place: Place, writer: Writer, least: int, most: int | None) -> Part | None:
    """Matches objects that name no properties."""
    patterns = keywords.get("patternProperties", {})
    if len(patterns) > 1:
        raise ValueError(
            f"{place.name}.patternProperties has several patterns, which cannot be followed; name properties"
        )
    keys, extra = (
        _keys(keywords, place, writer),
        keywords.get("additionalProperties", keywords.get("unevaluatedProperties", True)),
    )
    if patterns:
        [(pattern, extra)] = patterns.items()
        of_keys = [{"type": "string", "pattern": pattern}, keywords.get("propertyNames", True)]
        keys = writer.write(of_keys, place.below("patternProperties"))
    value = None if extra is False else writer.write([extra], place.below("additionalProperties"))
    if value is None:
        most, value = 0, any_value(0)
    if most is not None and least > most:
        return None
    return object_of(value, keys, least, most)


def array(keywords: Mapping[str, Any], place: Place, writer: Writer, longest: int) -> Part | None:
    """Matches arrays of items that schemas allow; a `maxItems` above `longest` counts as that, or as `minItems`."""
    where = place.name
    least, most = count(keywords, "minItems", where) or 0, count(keywords, "maxItems", where)
    if most is not None and most < least:
        raise ValueError(f"{where} has minItems={least} above maxItems={most}; expected at most that")
    first, rest = entries(keywords, "prefixItems", list, where), keywords.get("items", True)
    if isinstance(rest, list):  # as drafts before 2020-12 have it
        first, rest = rest, keywords.get("additionalItems", True)
    if keywords.get("uniqueItems") is True and (most is None or most > 1):
        return _unique(None if first else writer.values(rest, place.below("items")), least, most, where)
    item = None if rest is False else writer.write([rest], place.below("items"))
    if not first:
        if item is None and least:
            return None
        fewer = None if most is None else max(least, min(most, longest))
        return _array_of(item or literal(""), least, 0 if item is None else fewer)
    if most is not None and most < len(first) or least > len(first) and item is None:
        raise ValueError(f"{where} has {len(first)} prefixItems, which do not fit its bounds; change one of them")
    items = [writer.write([schema], place.below("prefixItems", i)) for i, schema in enumerate(first)]
    items += [item] * (least - len(first))
    written = [part for part in items if part is not None]
    return _between("[", in_order(written, [True] * len(items), COMMA), "]") if len(written) == len(items) else None


def _unique(values: list[Any] | None, least: int, most: int | None, where: str) -> Part | None:
    """Matches arrays that have each of some values at most once."""
    if values is None:
        raise ValueError(
            f"{where}.uniqueItems cannot be followed here, but of an enum: no finite automaton tells items apart"
        )
    most = len(values) if most is None else min(most, len(values))
    if least > most:
        return None
    parts = [literal_of(value) for value in values]
    if len(values) <= MOST_UNIQUE:
        return _between("[", selection(parts, least, most, COMMA), "]")
    if least > 1 or most < len(values):
        raise ValueError(
            f"{where} has uniqueItems beside minItems or maxItems, which cannot be followed of more than {MOST_UNIQUE} "
            "values; leave the counts out"
        )
    return _between("[", in_order(parts, [False] * len(parts), COMMA, least=least), "]")
