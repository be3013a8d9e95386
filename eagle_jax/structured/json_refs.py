"""References within a schema, and whether alternatives exclude each other."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from eagle_jax.structured.json_keywords import TYPES, entries, guessed_types


def resolve_pointer(root: Any, ref: str) -> Any:
    """Returns the place in a schema that a JSON pointer names; None if there is none."""
    node = root
    for part in (unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.removeprefix("#").split("/")[1:]):
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, Mapping) and part in node:
            node = node[part]
        else:
            return None
    return node


def exclude_each_other(schemas: list[Any], common: Mapping[str, Any], root: Any) -> bool:
    """Returns whether no answer fits two of the schemas: their types differ, constants of theirs do, or one requires
    what another one does not allow or, as answers have no other properties than a schema names, never has.

    Args:
        common: what holds for all of them.
    """
    opened = [_opened(schema, common, root) for schema in schemas]
    return all(_exclude(one, other, root) for one, other in itertools.combinations(opened, 2))


def _opened(schema: Any, common: Mapping[str, Any], root: Any) -> Any:
    """Returns a schema with what it refers to, as far as that can be resolved, and with the keywords next to it."""
    for _ in range(20):
        if not isinstance(schema, Mapping):
            return schema
        inner = schema.get("allOf")
        if isinstance(schema.get("$ref"), str):
            target = resolve_pointer(root, schema["$ref"])
        elif isinstance(inner, list) and len(inner) == 1:
            target = inner[0]
        else:
            break
        rest = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        schema = {**target, **rest} if isinstance(target, Mapping) else target
    if not isinstance(schema, Mapping):
        return schema
    named = [entries(one, "properties", dict, "oneOf") for one in (common, schema)]
    required = [entries(one, "required", list, "oneOf") for one in (common, schema)]
    joined = {"properties": {**named[0], **named[1]}, "required": [*required[0], *required[1]]}
    return {**common, **schema, **{name: value for name, value in joined.items() if value}}


def _exclude(one: Any, other: Any, root: Any) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    if _differ(_constants(one), _constants(other)):
        return True
    return _never_fits(one, other, root) and _never_fits(other, one, root)


def _never_fits(one: Mapping[str, Any], other: Mapping[str, Any], root: Any) -> bool:
    """Returns whether no answer to one schema fits another one."""
    shared = _kinds(one, guessed_types(one) or TYPES) & _kinds(other, TYPES)
    if shared - {"object"}:
        return False
    named, others = (entries(schema, "properties", dict, "oneOf") for schema in (one, other))
    required, needed = (entries(schema, "required", list, "oneOf") for schema in (one, other))
    is_closed = bool(named) or one.get("additionalProperties") is False and "patternProperties" not in one
    for name in (name for name in needed if isinstance(name, str)):
        if name not in named and name not in required:
            if is_closed:
                return True
        elif name in named and name in others:
            if _differ(*(_constants(_opened(schemas[name], {}, root)) for schemas in (named, others))):
                return True
    is_narrow = other.get("additionalProperties") is False and "patternProperties" not in other
    is_foreign = is_narrow and any(isinstance(name, str) and name not in others for name in required)
    return not shared or is_foreign


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _differ(first: list[Any] | None, second: list[Any] | None) -> bool:
    """Returns whether both have constants, and none in common."""
    return first is not None and second is not None and not any(value in second for value in first)


def _kinds(schema: Mapping[str, Any], unsaid: Iterable[str]) -> set[str]:
    """Returns the types that a value of a schema may have, an integer being a number as well."""
    kinds = schema.get("type", [*unsaid])
    kinds = {kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)}
    return (
        kinds | ({"integer"} if "number" in kinds else set()) | ({"null"} if schema.get("nullable") is True else set())
    )
