"""JSON schemas as automata: every text that one accepts is valid JSON and fits the schema.

An automaton may accept fewer texts than the schema allows: properties come in the schema's order, there are no others
than the schema names, and at most one space stands where JSON allows any. Keywords that are unknown, or that no finite
automaton can express, are refused by name.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_marks import marked
from eagle_jax.structured.automaton_parts import automaton, either, literal, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, TooLarge, too_large
from eagle_jax.structured.json_containers import any_value, array, object_of, objects
from eagle_jax.structured.json_keywords import Place, followed, guessed_types, types
from eagle_jax.structured.json_leaves import literals, number
from eagle_jax.structured.json_merge import merged
from eagle_jax.structured.json_refs import exclude_each_other, resolve_pointer
from eagle_jax.structured.json_strings import string

DEEPEST = 5  # levels of objects and arrays in any JSON object
MOST_SCHEMAS = 4_000  # that are written, one that is referred to each time
# A schema with this keyword is a document of its own: references start from it, and errors name the keyword's value.
PLACE_KEYWORD = "x-eagle-jax-root"
# The pair of texts, not JSON, that stand before and after what a schema with this keyword allows.
BETWEEN = "x-eagle-jax-between"
Keywords = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much of what may be endless is followed.

    Attributes:
        levels: how many times a reference may stand within what it refers to.
        longest: characters of a string that are counted; a larger `maxLength` counts as this number.
        items: of an array that are counted; a larger `maxItems` counts as this number.
    """

    levels: int
    longest: int
    items: int


# The first that is not too large. States of items multiply by their number, so lists are cut last.
EFFORTS = (Effort(4, 1800, 1000), Effort(2, 600, 1000), Effort(1, 200, 1000), Effort(1, 64, 6))


@functools.lru_cache(maxsize=1)
def any_object() -> ByteAutomaton:
    """Matches JSON objects that nest at most `DEEPEST` deep."""
    return automaton_of(object_of(any_value(DEEPEST - 1)), "any JSON object")


def schema_automaton(schema: str) -> ByteAutomaton:
    """Returns the automaton of a schema, which is JSON itself.

    Raises:
        ValueError: it has a keyword that cannot be followed here, allows nothing, or its automaton is too large; the
            message names the place.
    """
    parsed = json.loads(schema)
    place = "json_schema"
    if isinstance(parsed, Mapping) and isinstance(parsed.get(PLACE_KEYWORD), str):
        place = parsed[PLACE_KEYWORD]
    if isinstance(parsed, Mapping) and {**parsed, PLACE_KEYWORD: ""} == {"type": "object", PLACE_KEYWORD: ""}:
        return any_object()
    try:
        return _with_least_effort(parsed, place)
    except RecursionError:
        raise ValueError(f"{place} nests too deeply to be followed; use fewer levels") from None


def _with_least_effort(parsed: Any, place: str) -> ByteAutomaton:
    problem: TooLarge | None = None
    for effort in EFFORTS:
        writer = _Writer(parsed, effort)
        try:
            part = writer.write([parsed], Place(place, parsed))
            if part is None:
                raise ValueError(writer.why_nothing(place))
            return automaton_of(part, place)
        except TooLarge as error:
            problem = error
        if not writer.is_cut:
            break
    assert problem is not None
    raise problem


class _Writer:
    """Makes the parts of one schema's automaton; None is that of a schema that allows nothing."""

    def __init__(self, root: Any, effort: Effort):
        self._effort = effort
        self._written = 0
        self._nothing = ""  # the first place that allows nothing, and why
        self.is_cut = False  # whether anything was followed less far than the schema goes

    def why_nothing(self, place: str) -> str:
        """Returns the error about a schema that allows nothing."""
        return self._nothing or f"{place} allows nothing; expected a schema that allows something"

    def write(self, schemas: list[Any], place: Place) -> Part | None:
        """Returns the part of the values that fit all of several schemas."""
        self._written += 1
        if self._written > MOST_SCHEMAS:
            raise too_large(place.name)
        if len(schemas) == 1 and isinstance(schemas[0], Mapping) and BETWEEN in schemas[0]:
            schema = dict(schemas[0])
            before, after = schema.pop(BETWEEN)
            inner = self.write([schema], place)
            return None if inner is None else sequence(marked(before), inner, marked(after))
        flat = self._flat(schemas, place)
        if flat is None:
            return None
        keywords, choices, place, or_null = flat
        if choices:
            part = self._alternatives(keywords, choices, place)
        elif keywords.get("type") == []:
            part = None
            self._allows_nothing(f"{place.name} allows nothing: its types exclude each other; change one of them")
        elif "enum" in keywords:
            part = literals(keywords, place.name)
        else:
            part = self._typed(keywords, place)
        return either(*(one for one in (part, literal("null")) if one is not None)) if or_null else part

    def values(self, schema: Any, place: Place) -> list[Any] | None:
        """Returns the values that a schema lists; None if it does not."""
        keywords, choices, _, _ = self._flat([schema], place) or ({}, [], place, False)
        if keywords.get("type") == "boolean" and not choices:
            return [True, False]
        return keywords["enum"] if isinstance(keywords.get("enum"), list) and not choices else None

    def _flat(
        self, schemas: list[Any], place: Place
    ) -> tuple[Keywords, list[tuple[str, list[Any]]], Place, bool] | None:
        """Merges schemas: keywords, alternatives next to them, and whether null is a value too."""
        keywords, choices, or_null = Keywords(), list[tuple[str, list[Any]]](), False
        open_ = [*schemas]
        while open_:
            schema = open_.pop(0)
            if schema is True:
                continue
            if schema is False or schema in ({"not": {}}, {"not": True}):
                self._allows_nothing(f"{place.name} is false, which allows nothing; expected another schema")
                return None
            if not isinstance(schema, Mapping):
                raise ValueError(f"{place.name}={json.dumps(schema)[:60]}; expected an object")
            if isinstance(schema.get(PLACE_KEYWORD), str) and schema is not place.root:
                place = Place(schema[PLACE_KEYWORD], schema, place.refs)
            followed_keywords = followed(schema, place.name)
            if followed_keywords.pop("nullable", False) is True:
                if followed_keywords.get("type") is None:
                    or_null = len(schemas) == 1
                else:
                    followed_keywords["type"] = list(
                        dict.fromkeys([*types(followed_keywords["type"], place.name), "null"])
                    )
            if "const" in followed_keywords:
                followed_keywords = (
                    merged({"enum": [followed_keywords.pop("const")]}, followed_keywords, place.name)
                    if "enum" in followed_keywords
                    else followed_keywords | {"enum": [followed_keywords.pop("const")]}
                )
            if "$ref" in followed_keywords:
                target, place = self._target(followed_keywords.pop("$ref"), place)
                if place.refs.count(place.refs[-1]) > self._effort.levels:
                    self.is_cut = True
                    self._allows_nothing(
                        f"{place.name} is recursive and never ends within {self._effort.levels} levels, so no answer "
                        "is complete; expected a schema with an end, such as null or an optional property"
                    )
                    return None
                open_.insert(0, target)
            for name in ("allOf", "anyOf", "oneOf"):
                if name in followed_keywords:
                    inner = followed_keywords.pop(name)
                    if not isinstance(inner, list) or not inner:
                        raise ValueError(f"{place.name}.{name}={json.dumps(inner)[:60]}; expected a list of schemas")
                    open_ += inner if name == "allOf" else []
                    choices += [] if name == "allOf" else [(name, inner)]
            keywords = merged(keywords, followed_keywords, place.name)
        return keywords, choices, place, or_null

    def _allows_nothing(self, why: str) -> None:
        """Remembers why, where nothing else allowed nothing before."""
        self._nothing = self._nothing or why

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
        """Returns the alternatives of the first choice, each with all keywords next to it."""
        (name, schemas), *others = choices
        common = [keywords, *({other: inner} for other, inner in others)] if keywords or others else []
        if name == "oneOf" and not exclude_each_other(schemas, keywords, place.root):
            raise ValueError(
                f"{place.name}.oneOf has schemas that may both fit; expected other types, or a required property with "
                "other constants, or use anyOf"
            )
        parts = [self.write([*common, schema], place.below(name, i)) for i, schema in enumerate(schemas)]
        left = [part for part in parts if part is not None]
        return either(*left) if left else None

    def _typed(self, keywords: Keywords, place: Place) -> Part | None:
        where = place.name
        if "type" in keywords:
            kinds = types(keywords["type"], where)
        elif not keywords:
            return any_value(2)
        else:
            kinds = guessed_types(keywords)
        parts = [self._of_kind(kind, keywords, place) for kind in dict.fromkeys(kinds)]
        left = [part for part in parts if part is not None]
        return either(*left) if left else None

    def _of_kind(self, kind: str, keywords: Keywords, place: Place) -> Part | None:
        if kind == "object":
            return objects(keywords, place, self)
        if kind == "array":
            self.is_cut = self.is_cut or "maxItems" in keywords
            return array(keywords, place, self, self._effort.items)
        if kind == "string":
            self.is_cut = self.is_cut or "maxLength" in keywords
            return automaton(string(keywords, place.name, self._effort.longest))
        if kind in ("integer", "number"):
            return number(keywords, place.name, integers=kind == "integer")
        return literal("null") if kind == "null" else either(literal("true"), literal("false"))
