"""References within a schema, and mutual exclusion of alternatives."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from eagle_jax.structured.json_keywords import TYPES, implied_types, read_container


def resolve_pointer(root: Any, ref: str) -> Any:
    """Returns the part of a schema that a JSON pointer refers to; None if there is none."""
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
    """Returns whether no answer is valid for two of the schemas: their types or constants differ, or one requires a
    property that the other forbids or does not name (answers have only properties that a schema names).

    Args:
        common: keywords that apply to all schemas.
    """
    resolved = [_resolve(schema, common, root) for schema in schemas]
    return all(_exclude(first, second, root) for first, second in itertools.combinations(resolved, 2))


def _resolve(schema: Any, common: Mapping[str, Any], root: Any) -> Any:
    """Returns a schema with its references resolved where possible, merged with the keywords around it."""
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
    named = [read_container(part, "properties", dict, "oneOf") for part in (common, schema)]
    required = [read_container(part, "required", list, "oneOf") for part in (common, schema)]
    joined = {"properties": {**named[0], **named[1]}, "required": [*required[0], *required[1]]}
    return {**common, **schema, **{name: value for name, value in joined.items() if value}}


def _exclude(first: Any, second: Any, root: Any) -> bool:
    if first is False or second is False:
        return True
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return False
    if _have_no_common_value(_constants(first), _constants(second)):
        return True
    return _disjoint_from(first, second, root) and _disjoint_from(second, first, root)


def _disjoint_from(first: Mapping[str, Any], second: Mapping[str, Any], root: Any) -> bool:
    """Returns whether no answer to one schema is valid for the other."""
    shared = _kinds(first, implied_types(first) or TYPES) & _kinds(second, TYPES)
    if shared - {"object"}:
        return False
    named, others = (read_container(schema, "properties", dict, "oneOf") for schema in (first, second))
    required, needed = (read_container(schema, "required", list, "oneOf") for schema in (first, second))
    is_closed = bool(named) or first.get("additionalProperties") is False and "patternProperties" not in first
    for name in (name for name in needed if isinstance(name, str)):
        if name not in named and name not in required:
            if is_closed:
                return True
        elif name in named and name in others:
            if _have_no_common_value(*(_constants(_resolve(schemas[name], {}, root)) for schemas in (named, others))):
                return True
    is_narrow = second.get("additionalProperties") is False and "patternProperties" not in second
    is_foreign = is_narrow and any(isinstance(name, str) and name not in others for name in required)
    return not shared or is_foreign


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _have_no_common_value(first: list[Any] | None, second: list[Any] | None) -> bool:
    """Returns whether both are lists without a common value."""
    return first is not None and second is not None and not any(value in second for value in first)


def _kinds(schema: Mapping[str, Any], default_types: Iterable[str]) -> set[str]:
    """Returns the types that a schema allows; "number" includes "integer"."""
    kinds = schema.get("type", [*default_types])
    kinds = {kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)}
    return (
        kinds | ({"integer"} if "number" in kinds else set()) | ({"null"} if schema.get("nullable") is True else set())
    )
