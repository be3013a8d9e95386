"""JSON schemas as automata: every accepted text is valid JSON and valid for the schema.

An automaton may accept fewer texts than the schema allows: properties keep the schema's order, there are no properties
that the schema does not name, and at most one space stands where JSON allows any. Unknown keywords, and keywords that
no finite automaton expresses, are rejected by name.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_marks import with_marks
from eagle_jax.structured.automaton_parts import automaton, either, literal, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, TooLarge, too_large
from eagle_jax.structured.json_containers import any_value, array, object_of, objects
from eagle_jax.structured.json_keywords import Place, effective_keywords, implied_types, read_types
from eagle_jax.structured.json_leaves import literals, number
from eagle_jax.structured.json_merge import merge_keywords
from eagle_jax.structured.json_refs import exclude_each_other, resolve_pointer
from eagle_jax.structured.json_strings import string

MAX_DEPTH = 5  # nested objects and arrays in `{"type": "object"}`
MAX_SCHEMAS = 4_000  # schemas expanded, counting every reference
# A schema with this keyword is a separate document: its references start from it, and errors name the keyword's value.
PLACE_KEYWORD = "x-eagle-jax-root"
# The value of this keyword is a pair of texts, not JSON, that surround the schema's values.
BETWEEN = "x-eagle-jax-between"
Keywords = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Effort:
    """Limits on the unbounded parts of a schema.

    Attributes:
        max_recursion: how deeply a reference may be nested in itself.
        max_length: maximum number of characters of a string; a larger `maxLength` is reduced to it.
        max_items: maximum number of items of an array; a larger `maxItems` is reduced to it.
    """

    max_recursion: int
    max_length: int
    max_items: int


# The first that gives no too large automaton is taken. Lists are cut last: items multiply the number of states.
EFFORTS = (Effort(4, 1800, 1000), Effort(2, 600, 1000), Effort(1, 200, 1000), Effort(1, 64, 6))


@functools.lru_cache(maxsize=1)
def any_object() -> ByteAutomaton:
    """Matches any JSON object with at most `MAX_DEPTH` nested levels."""
    return automaton_of(object_of(any_value(MAX_DEPTH - 1)), "any JSON object")


def schema_automaton(schema: str) -> ByteAutomaton:
    """Returns the automaton of a schema in JSON.

    Raises:
        ValueError: a keyword is not supported, no value is valid, or the automaton is too large; the message names
            the place.
    """
    parsed = json.loads(schema)
    place = "json_schema"
    if isinstance(parsed, Mapping) and isinstance(parsed.get(PLACE_KEYWORD), str):
        place = parsed[PLACE_KEYWORD]
    if isinstance(parsed, Mapping) and {**parsed, PLACE_KEYWORD: ""} == {"type": "object", PLACE_KEYWORD: ""}:
        return any_object()
    try:
        return _largest_automaton(parsed, place)
    except RecursionError:
        raise ValueError(f"{place} is nested too deeply; use fewer levels") from None


def _largest_automaton(parsed: Any, place: str) -> ByteAutomaton:
    problem: TooLarge | None = None
    for effort in EFFORTS:
        writer = _Writer(parsed, effort)
        try:
            part = writer.write([parsed], Place(place, parsed))
            if part is None:
                raise ValueError(writer.empty_error(place))
            return automaton_of(part, place)
        except TooLarge as error:
            problem = error
        if not writer.is_cut:
            break
    assert problem is not None
    raise problem


class _Writer:
    """Turns one schema into parts of an automaton; a part is None if no value is valid."""

    def __init__(self, root: Any, effort: Effort):
        self._effort = effort
        self._num_written = 0
        self._empty_reason = ""  # why the first place without valid values has none
        self.is_cut = False  # whether a limit of `effort` was applied

    def empty_error(self, place: str) -> str:
        """Returns the error message for a schema without valid values."""
        return self._empty_reason or f"{place} allows nothing; expected a schema that allows something"

    def write(self, schemas: list[Any], place: Place) -> Part | None:
        """Returns the part that matches values valid for all of the schemas; None if there are no such values."""
        self._num_written += 1
        if self._num_written > MAX_SCHEMAS:
            raise too_large(place.name)
        if len(schemas) == 1 and isinstance(schemas[0], Mapping) and BETWEEN in schemas[0]:
            schema = dict(schemas[0])
            before, after = schema.pop(BETWEEN)
            inner = self.write([schema], place)
            return None if inner is None else sequence(with_marks(before), inner, with_marks(after))
        flat = self._flatten(schemas, place)
        if flat is None:
            return None
        keywords, choices, place, or_null = flat
        if choices:
            part = self._alternatives(keywords, choices, place)
        elif keywords.get("type") == []:
            part = None
            self._note_empty(f"{place.name} allows nothing: its types exclude each other; change one of them")
        elif "enum" in keywords:
            part = literals(keywords, place.name)
        else:
            part = self._types_part(keywords, place)
        return either(*(option for option in (part, literal("null")) if option is not None)) if or_null else part

    def values(self, schema: Any, place: Place) -> list[Any] | None:
        """Returns the values that a schema enumerates; None if it does not."""
        keywords, choices, _, _ = self._flatten([schema], place) or ({}, [], place, False)
        if keywords.get("type") == "boolean" and not choices:
            return [True, False]
        return keywords["enum"] if isinstance(keywords.get("enum"), list) and not choices else None

    def _flatten(
        self, schemas: list[Any], place: Place
    ) -> tuple[Keywords, list[tuple[str, list[Any]]], Place, bool] | None:
        """Merges schemas; returns keywords, lists of alternatives, the place, and whether null is valid too."""
        keywords, choices, or_null = Keywords(), list[tuple[str, list[Any]]](), False
        pending = [*schemas]
        while pending:
            schema = pending.pop(0)
            if schema is True:
                continue
            if schema is False or schema in ({"not": {}}, {"not": True}):
                self._note_empty(f"{place.name} is false, which allows nothing; expected another schema")
                return None
            if not isinstance(schema, Mapping):
                raise ValueError(f"{place.name}={json.dumps(schema)[:60]}; expected an object")
            if isinstance(schema.get(PLACE_KEYWORD), str) and schema is not place.root:
                place = Place(schema[PLACE_KEYWORD], schema, place.refs)
            effective = effective_keywords(schema, place.name)
            if effective.pop("nullable", False) is True:
                if effective.get("type") is None:
                    or_null = len(schemas) == 1
                else:
                    effective["type"] = list(dict.fromkeys([*read_types(effective["type"], place.name), "null"]))
            if "const" in effective:
                effective = (
                    merge_keywords({"enum": [effective.pop("const")]}, effective, place.name)
                    if "enum" in effective
                    else effective | {"enum": [effective.pop("const")]}
                )
            if "$ref" in effective:
                target, place = self._target(effective.pop("$ref"), place)
                if place.refs.count(place.refs[-1]) > self._effort.max_recursion:
                    self.is_cut = True
                    self._note_empty(
                        f"{place.name} is recursive and does not end within {self._effort.max_recursion} levels; "
                        "expected a schema that can end, such as with null or an optional property"
                    )
                    return None
                pending.insert(0, target)
            for name in ("allOf", "anyOf", "oneOf"):
                if name in effective:
                    inner = effective.pop(name)
                    if not isinstance(inner, list) or not inner:
                        raise ValueError(f"{place.name}.{name}={json.dumps(inner)[:60]}; expected a list of schemas")
                    pending += inner if name == "allOf" else []
                    choices += [] if name == "allOf" else [(name, inner)]
            keywords = merge_keywords(keywords, effective, place.name)
        return keywords, choices, place, or_null

    def _note_empty(self, reason: str) -> None:
        """Stores the first reason."""
        self._empty_reason = self._empty_reason or reason

    def _target(self, ref: Any, place: Place) -> tuple[Any, Place]:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise ValueError(
                f'{place.name}.$ref={json.dumps(ref)[:60]}; expected one within the schema, such as "#/$defs/a"'
            )
        schema = resolve_pointer(place.root, ref)
        if schema is None:
            raise ValueError(f"{place.name}.$ref={ref!r} leads nowhere; expected the place of a schema")
        return schema, dataclasses.replace(place, refs=(*place.refs, ref))

    def _alternatives(self, keywords: Keywords, choices: list[tuple[str, list[Any]]], place: Place) -> Part | None:
        """Matches the alternatives of the first choice, each combined with the other keywords and choices."""
        (name, schemas), *others = choices
        common = [keywords, *({keyword: inner} for keyword, inner in others)] if keywords or others else []
        if name == "oneOf" and not exclude_each_other(schemas, keywords, place.root):
            raise ValueError(
                f"{place.name}.oneOf has schemas that may both be valid; expected different types or a required "
                "property with different constants, or use anyOf"
            )
        parts = [self.write([*common, schema], place.below(name, i)) for i, schema in enumerate(schemas)]
        allowed = [part for part in parts if part is not None]
        return either(*allowed) if allowed else None

    def _types_part(self, keywords: Keywords, place: Place) -> Part | None:
        where = place.name
        if "type" in keywords:
            kinds = read_types(keywords["type"], where)
        elif not keywords:
            return any_value(2)
        else:
            kinds = implied_types(keywords)
        parts = [self._type_part(kind, keywords, place) for kind in dict.fromkeys(kinds)]
        allowed = [part for part in parts if part is not None]
        return either(*allowed) if allowed else None

    def _type_part(self, kind: str, keywords: Keywords, place: Place) -> Part | None:
        if kind == "object":
            return objects(keywords, place, self)
        if kind == "array":
            self.is_cut = self.is_cut or "maxItems" in keywords
            return array(keywords, place, self, self._effort.max_items)
        if kind == "string":
            self.is_cut = self.is_cut or "maxLength" in keywords
            return automaton(string(keywords, place.name, self._effort.max_length))
        if kind in ("integer", "number"):
            return number(keywords, place.name, integers=kind == "integer")
        return literal("null") if kind == "null" else either(literal("true"), literal("false"))
