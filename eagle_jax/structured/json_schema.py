"""JSON schemas as automata: every text that one accepts is valid JSON and fits the schema.

An automaton may accept fewer texts than the schema allows: properties come in the schema's order, none is added to
those that it names, and at most one space stands where JSON allows any. What a schema says and no finite automaton
holds, or is not known here, is refused by name.
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
from eagle_jax.structured.json_refs import exclude_each_other, found_at
from eagle_jax.structured.json_strings import string

DEEPEST = 5  # levels of objects and arrays in any JSON object
MOST_SCHEMAS = 4_000  # that are written, one that is referred to each time
# A schema with this keyword is one of its own: references within lead on from here, and errors say this of the place.
ROOT = "x-eagle-jax-root"
# Texts before and after what a schema with this keyword allows, which are no JSON.
BETWEEN = "x-eagle-jax-between"
Said = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much of what may be endless is followed.

    Attributes:
        levels: how many times a reference may stand within what it refers to.
        longest: characters of a string that are counted; a larger `maxLength` counts as so many.
        items: of an array that are counted; a larger `maxItems` counts as so many.
    """

    levels: int
    longest: int
    items: int


# The first that is not too large. States of items multiply by their number, so lists are cut last.
EFFORTS = (Effort(4, 1800, 1000), Effort(2, 600, 1000), Effort(1, 200, 1000), Effort(1, 64, 6))


@functools.lru_cache(maxsize=1)
def any_object() -> ByteAutomaton:
    """JSON objects that nest at most `DEEPEST` deep."""
    return automaton_of(object_of(any_value(DEEPEST - 1)), "any JSON object")


def schema_automaton(schema: str) -> ByteAutomaton:
    """The automaton of a schema, which is JSON itself.

    Raises:
        ValueError: it has a keyword that cannot be followed here, allows nothing, or its automaton is too large; the
            message names the place.
    """
    parsed = json.loads(schema)
    place = "json_schema"
    if isinstance(parsed, Mapping) and isinstance(parsed.get(ROOT), str):
        place = parsed[ROOT]
    if isinstance(parsed, Mapping) and {**parsed, ROOT: ""} == {"type": "object", ROOT: ""}:
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
        """The error about a schema that allows nothing."""
        return self._nothing or f"{place} allows nothing; expected a schema that allows something"

    def write(self, schemas: list[Any], place: Place) -> Part | None:
        """The part of the values that fit all of several schemas."""
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
        said, choices, place, or_null = flat
        if choices:
            part = self._alternatives(said, choices, place)
        elif said.get("type") == []:
            part = None
            self._allows_nothing(f"{place.name} allows nothing: its types exclude each other; change one of them")
        elif "enum" in said:
            part = literals(said, place.name)
        else:
            part = self._typed(said, place)
        return either(*(one for one in (part, literal("null")) if one is not None)) if or_null else part

    def values(self, schema: Any, place: Place) -> list[Any] | None:
        """The values that a schema lists; None if it does not."""
        said, choices, _, _ = self._flat([schema], place) or ({}, [], place, False)
        if said.get("type") == "boolean" and not choices:
            return [True, False]
        return said["enum"] if isinstance(said.get("enum"), list) and not choices else None

    def _flat(self, schemas: list[Any], place: Place) -> tuple[Said, list[tuple[str, list[Any]]], Place, bool] | None:
        """What schemas say together: keywords, alternatives beside them, and whether null is a value too."""
        said, choices, or_null = Said(), list[tuple[str, list[Any]]](), False
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
            if isinstance(schema.get(ROOT), str) and schema is not place.root:
                place = Place(schema[ROOT], schema, place.refs)
            own = followed(schema, place.name)
            if own.pop("nullable", False) is True:
                if own.get("type") is None:
                    or_null = len(schemas) == 1
                else:
                    own["type"] = list(dict.fromkeys([*types(own["type"], place.name), "null"]))
            if "const" in own:
                own = (
                    merged({"enum": [own.pop("const")]}, own, place.name)
                    if "enum" in own
                    else own | {"enum": [own.pop("const")]}
                )
            if "$ref" in own:
                target, place = self._target(own.pop("$ref"), place)
                if place.refs.count(place.refs[-1]) > self._effort.levels:
                    self.is_cut = True
                    self._allows_nothing(
                        f"{place.name} is recursive and never ends within {self._effort.levels} levels, so no answer "
                        "is complete; expected a schema with an end, such as null or an optional property"
                    )
                    return None
                open_.insert(0, target)
            for name in ("allOf", "anyOf", "oneOf"):
                if name in own:
                    inner = own.pop(name)
                    if not isinstance(inner, list) or not inner:
                        raise ValueError(f"{place.name}.{name}={json.dumps(inner)[:60]}; expected a list of schemas")
                    open_ += inner if name == "allOf" else []
                    choices += [] if name == "allOf" else [(name, inner)]
            said = merged(said, own, place.name)
        return said, choices, place, or_null

    def _allows_nothing(self, why: str) -> None:
        """Remembers why, where nothing else allowed nothing before."""
        self._nothing = self._nothing or why

    def _target(self, ref: Any, place: Place) -> tuple[Any, Place]:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise ValueError(
                f'{place.name}.$ref={json.dumps(ref)[:60]}; expected one within the schema, such as "#/$defs/a"'
            )
        found = found_at(place.root, ref)
        if found is None:
            raise ValueError(f"{place.name}.$ref={ref!r} leads nowhere; expected the place of a schema")
        return found, dataclasses.replace(place, refs=(*place.refs, ref))

    def _alternatives(self, said: Said, choices: list[tuple[str, list[Any]]], place: Place) -> Part | None:
        """The alternatives of the first choice, each with all that stands beside it."""
        (name, schemas), *others = choices
        beside = [said, *({other: inner} for other, inner in others)] if said or others else []
        if name == "oneOf" and not exclude_each_other(schemas, said, place.root):
            raise ValueError(
                f"{place.name}.oneOf has schemas that may both fit; expected other types, or a required property with "
                "other constants, or use anyOf"
            )
        parts = [self.write([*beside, schema], place.below(name, i)) for i, schema in enumerate(schemas)]
        left = [part for part in parts if part is not None]
        return either(*left) if left else None

    def _typed(self, said: Said, place: Place) -> Part | None:
        where = place.name
        if "type" in said:
            kinds = types(said["type"], where)
        elif not said:
            return any_value(2)
        else:
            kinds = guessed_types(said)
        parts = [self._of_kind(kind, said, place) for kind in dict.fromkeys(kinds)]
        left = [part for part in parts if part is not None]
        return either(*left) if left else None

    def _of_kind(self, kind: str, said: Said, place: Place) -> Part | None:
        if kind == "object":
            return objects(said, place, self)
        if kind == "array":
            self.is_cut = self.is_cut or "maxItems" in said
            return array(said, place, self, self._effort.items)
        if kind == "string":
            self.is_cut = self.is_cut or "maxLength" in said
            return automaton(string(said, place.name, self._effort.longest))
        if kind in ("integer", "number"):
            return number(said, place.name, whole=kind == "integer")
        return literal("null") if kind == "null" else either(literal("true"), literal("false"))
