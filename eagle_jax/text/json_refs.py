"""References within a schema, and whether alternatives exclude each other."""

import itertools
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from eagle_jax.text.json_keywords import TYPES, entries


def found_at(root: Any, ref: str) -> Any:
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


def exclude_each_other(schemas: list[Any], beside: Mapping[str, Any], root: Any) -> bool:
    """Whether no value fits two of the schemas: their types differ, constants of theirs do, or one requires what
    another one does not allow.

    Args:
        beside: what holds for all of them.
    """
    opened = [_opened(schema, beside, root) for schema in schemas]
    return all(_exclude(one, other, root) for one, other in itertools.combinations(opened, 2))


def _opened(schema: Any, beside: Mapping[str, Any], root: Any) -> Any:
    """A schema with what it refers to, as far as that can be told, and with what stands beside it."""
    for _ in range(20):
        if not isinstance(schema, Mapping):
            return schema
        inner = schema.get("allOf")
        if isinstance(schema.get("$ref"), str):
            target = found_at(root, schema["$ref"])
        elif isinstance(inner, list) and len(inner) == 1:
            target = inner[0]
        else:
            break
        rest = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        schema = {**target, **rest} if isinstance(target, Mapping) else target
    if not isinstance(schema, Mapping):
        return schema
    named = [entries(one, "properties", dict, "oneOf") for one in (beside, schema)]
    required = [entries(one, "required", list, "oneOf") for one in (beside, schema)]
    joined = {"properties": {**named[0], **named[1]}, "required": [*required[0], *required[1]]}
    return {**beside, **schema, **{name: value for name, value in joined.items() if value}}


def _exclude(one: Any, other: Any, root: Any) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    if _differ(_constants(one), _constants(other)):
        return True
    kinds = [_kinds(one), _kinds(other)]
    if not kinds[0] & kinds[1]:
        return True
    if not kinds[0] == kinds[1] == {"object"}:
        return False
    named = [entries(schema, "properties", dict, "oneOf") for schema in (one, other)]
    required = [entries(schema, "required", list, "oneOf") for schema in (one, other)]
    for mine, theirs in ((0, 1), (1, 0)):
        closed = (one, other)[theirs].get("additionalProperties") is False
        if closed and "patternProperties" not in (one, other)[theirs]:
            if any(isinstance(name, str) and name not in named[theirs] for name in required[mine]):
                return True
    shared = [name for name in named[0] if all(name in names for names in required) and name in named[1]]
    return any(_differ(*(_constants(_opened(names[name], {}, root)) for names in named)) for name in shared)


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _differ(mine: list[Any] | None, theirs: list[Any] | None) -> bool:
    """Whether both have constants, and none in common."""
    return mine is not None and theirs is not None and not any(value in theirs for value in mine)


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a value of a schema may have, an integer being a number as well."""
    kinds = schema.get("type", list(TYPES))
    kinds = {kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)}
    return (
        kinds | ({"integer"} if "number" in kinds else set()) | ({"null"} if schema.get("nullable") is True else set())
    )
