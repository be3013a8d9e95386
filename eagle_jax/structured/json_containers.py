"""Parts of automata for a schema's objects and arrays."""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_parts import either, in_order, literal, optional, repeat, selection, sequence
from eagle_jax.structured.json_keywords import Place, read_container, read_count
from eagle_jax.structured.json_leaves import leaf, literal_of
from eagle_jax.structured.json_regexes import NUMBER, STRING

SPACE = optional(literal(" "))
COMMA, COLON = (sequence(SPACE, literal(sign), SPACE) for sign in ",:")
MAX_UNIQUE_VALUES = 6  # for a list of unique values in any order; with more values, they keep the schema's order


@runtime_checkable
class Writer(Protocol):
    """Turns schemas into parts of automata."""

    def write(self, schemas: list[Any], place: Place) -> Part | None:
        """Returns the part that matches values valid for all of the schemas; None if there are no such values."""

    def values(self, schema: Any, place: Place) -> list[Any] | None:
        """Returns the values that a schema enumerates; None if it does not."""


def any_value(depth: int) -> Part:
    """Matches any JSON value with at most `depth` nested levels."""
    scalars = leaf(STRING), leaf(NUMBER), literal("true"), literal("false"), literal("null")
    if not depth:
        return either(*scalars)
    inner = any_value(depth - 1)
    return either(*scalars, object_of(inner), _array_of(inner))


def object_of(value: Part, key: Part | None = None, min_count: int = 0, max_count: int | None = None) -> Part:
    """Matches objects with `min_count` to `max_count` keys: any keys, or those that `key` matches."""
    return _bracketed("{", repeat(sequence(key or leaf(STRING), COLON, value), min_count, max_count, COMMA), "}")


def _array_of(value: Part, min_count: int = 0, max_count: int | None = None) -> Part:
    return _bracketed("[", repeat(value, min_count, max_count, COMMA), "]")


def _bracketed(opening: str, inside: Part, closing: str) -> Part:
    return sequence(literal(opening), SPACE, inside, SPACE, literal(closing))


def objects(keywords: Mapping[str, Any], place: Place, writer: Writer) -> Part | None:
    """Matches objects with the properties of a schema, in its order; with any properties if it names none."""
    properties, required = _property_schemas(keywords, place)
    min_count, max_count = (
        read_count(keywords, "minProperties", place.name) or 0,
        read_count(keywords, "maxProperties", place.name),
    )
    if not properties:
        return _unnamed_properties(keywords, place, writer, min_count, max_count)
    keys = _allowed_keys(keywords, place, writer)
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
    is_required = [name in required for name in written]
    if min_count > max(1, sum(is_required)) or max_count is not None and max_count < len(written):
        raise ValueError(
            f"{place.name} has minProperties={min_count} or maxProperties={max_count} with {len(written)} named "
            "properties, which is not supported; require some of them instead"
        )
    if min_count > len(written):
        return None
    return _bracketed("{", in_order([*written.values()], is_required, COMMA, min_count=min(min_count, 1)), "}")


def _property_schemas(keywords: Mapping[str, Any], place: Place) -> tuple[dict[str, list[Any]], set[str]]:
    """Returns the schemas of each named or required property, and the names of the required ones."""
    where = place.name
    named, required = (
        read_container(keywords, "properties", dict, where),
        read_container(keywords, "required", list, where),
    )
    patterns, extra = (
        read_container(keywords, "patternProperties", dict, where),
        keywords.get("additionalProperties", True),
    )
    properties: dict[str, list[Any]] = {}
    for name in [*named, *required]:
        if not isinstance(name, str):
            raise ValueError(f"{where}.required has {json.dumps(name)[:60]}; expected names of properties")
        try:
            matching = [schema for pattern, schema in patterns.items() if re.search(pattern, name)]
        except re.error as error:
            raise ValueError(f"{where}.patternProperties has an invalid pattern: {error}; correct it") from None
        schemas = [named[name], *matching] if name in named else matching or [extra]
        if name in required and name not in named and schemas == [False]:
            raise ValueError(f"{where} requires {name!r}, which it does not allow; name it in properties")
        properties[name] = schemas
    return properties, set(required)


def _allowed_keys(keywords: Mapping[str, Any], place: Place, writer: Writer) -> Part | None:
    """Returns the part that matches the keys allowed by `propertyNames`; None without that keyword."""
    if "propertyNames" not in keywords:
        return None
    keys = writer.write([{"type": "string"}, keywords["propertyNames"]], place.below("propertyNames"))
    return sequence() if keys is None else keys  # the empty text is no key


def _unnamed_properties(
    keywords: Mapping[str, Any], place: Place, writer: Writer, min_count: int, max_count: int | None
) -> Part | None:
    """Matches objects that name no properties."""
    patterns = keywords.get("patternProperties", {})
    if len(patterns) > 1:
        raise ValueError(f"{place.name}.patternProperties has several patterns, which is not supported; use properties")
    keys, extra = (
        _allowed_keys(keywords, place, writer),
        keywords.get("additionalProperties", keywords.get("unevaluatedProperties", True)),
    )
    if patterns:
        [(pattern, extra)] = patterns.items()
        of_keys = [{"type": "string", "pattern": pattern}, keywords.get("propertyNames", True)]
        keys = writer.write(of_keys, place.below("patternProperties"))
    value = None if extra is False else writer.write([extra], place.below("additionalProperties"))
    if value is None:
        max_count, value = 0, any_value(0)
    if max_count is not None and min_count > max_count:
        return None
    return object_of(value, keys, min_count, max_count)


def array(keywords: Mapping[str, Any], place: Place, writer: Writer, longest: int) -> Part | None:
    """Matches arrays of allowed items; `maxItems` is reduced to `longest`, but not below `minItems`."""
    where = place.name
    min_count, max_count = read_count(keywords, "minItems", where) or 0, read_count(keywords, "maxItems", where)
    if max_count is not None and max_count < min_count:
        raise ValueError(
            f"{where} has minItems={min_count} above maxItems={max_count}; expected a minimum up to the maximum"
        )
    first, rest_schema = read_container(keywords, "prefixItems", list, where), keywords.get("items", True)
    if isinstance(rest_schema, list):  # as drafts before 2020-12 have it
        first, rest_schema = rest_schema, keywords.get("additionalItems", True)
    if keywords.get("uniqueItems") is True and (max_count is None or max_count > 1):
        return _unique_array(
            None if first else writer.values(rest_schema, place.below("items")), min_count, max_count, where
        )
    item = None if rest_schema is False else writer.write([rest_schema], place.below("items"))
    if not first:
        if item is None and min_count:
            return None
        fewer = None if max_count is None else max(min_count, min(max_count, longest))
        return _array_of(item or literal(""), min_count, 0 if item is None else fewer)
    if max_count is not None and max_count < len(first) or min_count > len(first) and item is None:
        raise ValueError(f"{where} has {len(first)} prefixItems, which do not fit its bounds; change one of them")
    items = [writer.write([schema], place.below("prefixItems", i)) for i, schema in enumerate(first)]
    items += [item] * (min_count - len(first))
    written = [part for part in items if part is not None]
    return _bracketed("[", in_order(written, [True] * len(items), COMMA), "]") if len(written) == len(items) else None


def _unique_array(values: list[Any] | None, min_count: int, max_count: int | None, where: str) -> Part | None:
    """Matches arrays that contain each of the values at most once."""
    if values is None:
        raise ValueError(f"{where}.uniqueItems is supported only for an enum, since no finite automaton compares items")
    max_count = len(values) if max_count is None else min(max_count, len(values))
    if min_count > max_count:
        return None
    parts = [literal_of(value) for value in values]
    if len(values) <= MAX_UNIQUE_VALUES:
        return _bracketed("[", selection(parts, min_count, max_count, COMMA), "]")
    if min_count > 1 or max_count < len(values):
        raise ValueError(
            f"{where} has uniqueItems with minItems or maxItems, which is not supported for more than "
            f"{MAX_UNIQUE_VALUES} values; leave the counts out"
        )
    return _bracketed("[", in_order(parts, [False] * len(parts), COMMA, min_count=min_count), "]")
