"""JSON schemas as automata: every text that one accepts is valid JSON and fits the schema.

An automaton may accept fewer texts than the schema allows: properties come in the schema's order, none is added to
those that it names, and at most one space stands where JSON allows any. What a schema says and no finite automaton
holds, or is not known here, is refused by name.
"""

import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from eagle_jax.text.automaton_parts import (
    Part,
    automaton_of,
    either,
    in_order,
    literal,
    optional,
    repeated,
    sequence,
)
from eagle_jax.text.byte_automaton import ByteAutomaton
from eagle_jax.text.json_leaves import BOUNDS, TYPES, constants, count, leaf, literals, names, number, string, types
from eagle_jax.text.json_regexes import NUMBER, STRING
from eagle_jax.text.token_bytes import SPECIAL

DEEPEST = 5  # levels of objects and arrays in any JSON object
SPACE = optional(literal(" "))
COMMA, COLON = (sequence(SPACE, literal(sign), SPACE) for sign in ",:")

# Keywords that describe, and never change what is valid.
NOTES = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema"),
    *("$id", "$comment", "$defs", "definitions", "discriminator", "contentEncoding", "contentMediaType"),
}
KEYWORDS: dict[str, set[str]] = {
    "object": {
        *("properties", "required", "additionalProperties", "unevaluatedProperties", "minProperties", "maxProperties")
    },
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": BOUNDS,
    "number": BOUNDS,
    "boolean": set(),
    "null": set(),
}


@functools.lru_cache(maxsize=1)
def any_object() -> ByteAutomaton:
    """JSON objects that nest at most `DEEPEST` deep."""
    return automaton_of(_object_of(_any_value(DEEPEST - 1)), "any JSON object")


def schema_automaton(schema: str, before: str = "", behind: str = "") -> ByteAutomaton:
    """The automaton of a schema, which is JSON itself, with texts before and behind it.

    What these have beside white space may be a special token.

    Raises:
        ValueError: it is recursive, has a keyword that cannot be followed here, allows nothing, or its automaton is too
            large; the message names the place.
    """
    parsed = json.loads(schema)
    if not before and not behind and parsed == {"type": "object"}:
        return any_object()
    try:
        made = _Writer(parsed).write(parsed, "json_schema", ())
        return automaton_of(sequence(_mark(before), made, _mark(behind)), "json_schema")
    except RecursionError:
        raise ValueError("json_schema nests too deeply to be followed; use fewer levels") from None


def _mark(text: str) -> Part:
    if not text:
        return sequence()
    begin, mark = len(text) - len(text.lstrip()), text.strip()
    either_way = either(literal(mark), literal(SPECIAL + mark.encode()))
    return sequence(literal(text[:begin]), either_way, literal(text[begin + len(mark) :]))


def _any_value(depth: int) -> Part:
    scalars = leaf(STRING), leaf(NUMBER), literal("true"), literal("false"), literal("null")
    if not depth:
        return either(*scalars)
    inner = _any_value(depth - 1)
    return either(*scalars, _object_of(inner), _array_of(inner))


def _object_of(value: Part, least: int = 0, most: int | None = None) -> Part:
    return _between("{", repeated(sequence(leaf(STRING), COLON, value), least, most, COMMA), "}")


def _array_of(value: Part, least: int = 0, most: int | None = None) -> Part:
    return _between("[", repeated(value, least, most, COMMA), "]")


def _between(opening: str, inside: Part, closing: str) -> Part:
    return sequence(literal(opening), SPACE, inside, SPACE, literal(closing))


class _Writer:
    """Makes the parts of one schema's automaton. `where` names a part, `within` are the references on the way."""

    def __init__(self, root: Any):
        self.root = root

    def write(self, schema: Any, where: str, within: tuple[str, ...]) -> Part:
        if schema is True:
            return _any_value(2)
        if schema is False:
            raise ValueError(f"{where} is false, which allows nothing; expected a schema that allows something")
        if not isinstance(schema, Mapping):
            raise ValueError(f"{where}={json.dumps(schema)[:60]}; expected an object")
        said = {name: value for name, value in schema.items() if name not in NOTES and not name.startswith("x-")}
        if "$ref" in said:
            return self._reference(_alone(said, "$ref", where), where, within)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in said:
                return self._alternatives(name, _alone(said, name, where), where, within)
        if "enum" in said or "const" in said:
            return literals(said, where)
        return self._typed(said, where, within)

    def _reference(self, ref: Any, where: str, within: tuple[str, ...]) -> Part:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise ValueError(
                f'{where}.$ref={json.dumps(ref)[:60]}; expected one within the schema, such as "#/$defs/a"'
            )
        if ref in within:
            raise ValueError(
                f"{where} refers to {ref} within itself: no finite automaton holds a recursive schema; write out as "
                "many levels as are needed"
            )
        found = _found(self.root, ref)
        if found is None:
            raise ValueError(f"{where}.$ref={ref!r} leads nowhere; expected the place of a schema")
        return self.write(found, ref, (*within, ref))

    def _alternatives(self, name: str, schemas: Any, where: str, within: tuple[str, ...]) -> Part:
        if not isinstance(schemas, list) or not schemas:
            raise ValueError(f"{where}.{name}={json.dumps(schemas)[:60]}; expected a list of schemas")
        if name == "allOf" and len(schemas) > 1:
            raise ValueError(f"{where}.allOf has several schemas, which cannot be followed here; merge them into one")
        if name == "oneOf":
            pairs = itertools.combinations(map(self._resolved, schemas), 2)
            if not all(_exclude_each_other(one, other, self._resolved) for one, other in pairs):
                raise ValueError(
                    f"{where}.oneOf has schemas that may both fit; expected other types, or a required property with "
                    "other constants, or use anyOf"
                )
        written = [self.write(schema, f"{where}.{name}[{i}]", within) for i, schema in enumerate(schemas)]
        return either(*written)

    def _resolved(self, schema: Any) -> Any:
        """What a schema refers to, as far as that can be told."""
        for _ in range(20):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            schema = _found(self.root, schema["$ref"])
        return schema

    def _typed(self, said: dict[str, Any], where: str, within: tuple[str, ...]) -> Part:
        kinds = said.pop("type", None)
        if kinds is None:
            kinds = [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & said.keys()]
            if not said:
                return _any_value(2)
        else:
            kinds = types(kinds, where)
        known = set().union(*(KEYWORDS[kind] for kind in kinds))
        for name in said:
            if name not in known:
                of = f" of {' or '.join(kinds)}" if kinds else ""
                raise ValueError(f"{where}.{name} cannot be followed here; the keywords{of} are {names(known)}")
        write = {
            "object": lambda: self._object(said, where, within),
            "array": lambda: self._array(said, where, within),
            "string": lambda: string(said, where),
            "integer": lambda: number(said, where, whole=True),
            "number": lambda: number(said, where, whole=False),
            "boolean": lambda: either(literal("true"), literal("false")),
            "null": lambda: literal("null"),
        }
        return either(*(write[kind]() for kind in dict.fromkeys(kinds)))

    def _object(self, said: Mapping[str, Any], where: str, within: tuple[str, ...]) -> Part:
        properties, required = dict(_taken(said, "properties", dict, where)), _taken(said, "required", list, where)
        extra = said.get("additionalProperties", said.get("unevaluatedProperties", True))
        least, most = count(said, "minProperties", where), count(said, "maxProperties", where)
        for name in required:
            if not isinstance(name, str):
                raise ValueError(f"{where}.required has {json.dumps(name)[:60]}; expected names of properties")
            if name not in properties and extra is False:
                raise ValueError(f"{where} requires {name!r}, which it does not allow; name it in properties")
            properties.setdefault(name, extra)
        if not properties:
            if least is not None and least > 1:
                raise ValueError(f"{where}.minProperties={least} of any names cannot be followed here; name properties")
            if extra is False:
                most = 0
            return _object_of(_any_value(1) if most == 0 else self.write(extra, f"{where}.*", within), least or 0, most)
        if least is not None and least > len(required) or most is not None and most < len(properties):
            raise ValueError(f"{where} bounds the number of its named properties, which cannot be followed here")
        written = [
            sequence(literals({"const": name}, where), COLON, self.write(schema, f"{where}.{name}", within))
            for name, schema in properties.items()
        ]
        return _between("{", in_order(written, [name in required for name in properties], COMMA), "}")

    def _array(self, said: Mapping[str, Any], where: str, within: tuple[str, ...]) -> Part:
        if said.get("uniqueItems"):
            raise ValueError(f"{where}.uniqueItems cannot be followed here: no finite automaton tells items apart")
        least, most = count(said, "minItems", where) or 0, count(said, "maxItems", where)
        if most is not None and most < least:
            raise ValueError(f"{where} has minItems={least} above maxItems={most}; expected at most that")
        first, rest = _taken(said, "prefixItems", list, where), said.get("items", True)
        if isinstance(rest, list):  # as drafts before 2020-12 have it
            first, rest = rest, said.get("additionalItems", True)
        if not first:
            item = literal("") if rest is False else self.write(rest, f"{where}.items", within)
            return _array_of(item, least, 0 if rest is False else most)
        if most is not None and most < len(first) or least > len(first) and rest is False:
            raise ValueError(f"{where} has {len(first)} prefixItems, which do not fit its bounds; change one of them")
        items = [self.write(schema, f"{where}.prefixItems[{i}]", within) for i, schema in enumerate(first)]
        more = least - len(first)
        if more > 0:
            items += [self.write(rest, f"{where}.items", within)] * more
        return _between("[", in_order(items, [True] * len(items), COMMA), "]")


def _found(root: Any, ref: str) -> Any:
    """The place in a schema that a JSON pointer names; None if there is none."""
    found = root
    for part in (unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.removeprefix("#").split("/")[1:]):
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            return None
    return found


def _taken(said: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = said.get(name, kind())
    if not isinstance(value, kind):
        raise ValueError(
            f"{where}.{name}={json.dumps(value)[:60]}; expected {'an object' if kind is dict else 'a list'}"
        )
    return value


def _alone(said: Mapping[str, Any], name: str, where: str) -> Any:
    if len(said) > 1:
        raise ValueError(f"{where} has {names(said)} together, which cannot be followed here; keep {name} alone")
    return said[name]


def _exclude_each_other(one: Any, other: Any, resolved: Any) -> bool:
    """Whether no value fits both: their types differ, or constants of theirs do."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    if _differ(constants(one), constants(other)):
        return True
    kinds = [_kinds(one), _kinds(other)]
    if not kinds[0] & kinds[1]:
        return True
    if not kinds[0] == kinds[1] == {"object"}:
        return False
    named = [_taken(schema, "properties", dict, "oneOf") for schema in (one, other)]
    shared = [
        name for name in named[0] if all(name in _taken(schema, "required", list, "oneOf") for schema in (one, other))
    ]
    return any(_differ(*(constants(resolved(properties.get(name))) for properties in named)) for name in shared)


def _differ(mine: list[Any] | None, theirs: list[Any] | None) -> bool:
    """Whether both have constants, and none in common."""
    return mine is not None and theirs is not None and not any(value in theirs for value in mine)


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a value of a schema may have, an integer being a number as well."""
    kinds = schema.get("type", list(TYPES))
    kinds = {kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)}
    return kinds | ({"integer"} if "number" in kinds else set())
