"""The keywords of JSON schemas, and readers of their values."""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
# Annotations, which never change what is valid.
NOTES = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema"),
    *("$id", "$comment", "$defs", "definitions", "discriminator", "contentEncoding", "contentMediaType"),
}
KEYWORDS: dict[str, set[str]] = {
    "object": {
        *("properties", "required", "additionalProperties", "unevaluatedProperties", "minProperties", "maxProperties"),
        *("propertyNames", "patternProperties"),
    },
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": BOUNDS,
    "number": BOUNDS,
    "boolean": set(),
    "null": set(),
}
APPLIED = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "type", "nullable"}
REFUSED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas"),
    *("dependencies", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
}
FOLLOWED = APPLIED.union(*KEYWORDS.values())


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a schema within the whole.

    Attributes:
        name: path to the place, for error messages.
        root: the schema that references start from.
        refs: references followed on the way.
    """

    name: str
    root: Any
    refs: tuple[str, ...] = ()

    def below(self, keyword: str, name: str | int | None = None) -> "Place":
        """Returns the place of a schema within this one."""
        where = f"{self.name}.{keyword}"
        if isinstance(name, str) and name.isidentifier():
            where += f".{name}"
        elif name is not None:
            where += f"[{json.dumps(name, ensure_ascii=False)}]"
        return dataclasses.replace(self, name=where)


def effective_keywords(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the keywords of a schema that change what is valid.

    Raises:
        ValueError: a keyword is not supported, or looks like a misspelt one.
    """
    keywords = {name: value for name, value in schema.items() if name in FOLLOWED}
    for name in schema:
        if name in keywords or name in NOTES or name.startswith("x-"):
            continue
        if name in REFUSED:
            kinds = schema.get("type")
            accepted = KEYWORDS.get(kinds, APPLIED) if isinstance(kinds, str) else APPLIED
            raise ValueError(f"{where}.{name} is not supported; the supported keywords are {join_names(accepted)}")
        # validators take unknown keywords for annotations, but a misspelt keyword is not meant as one
        suggestions = difflib.get_close_matches(name, FOLLOWED | REFUSED, 1, 0.85)
        if suggestions:
            raise ValueError(f"{where}.{name} is not a keyword; expected {suggestions[0]}, or leave it out")
    return keywords


def read_types(value: Any, where: str) -> list[str]:
    """Returns the list of types that the value of `type` names."""
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or not all(kind in TYPES for kind in kinds):
        raise ValueError(f"{where}.type={json.dumps(value)[:60]}; expected one of {', '.join(TYPES)}, or a list")
    return kinds


def implied_types(keywords: Mapping[str, Any]) -> list[str]:
    """Returns the types that the keywords of a schema without `type` apply to."""
    return [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & keywords.keys()]


def read_count(keywords: Mapping[str, Any], name: str, where: str) -> int | None:
    """Returns the value of a keyword that counts characters, items or properties; None if it is absent."""
    value = keywords.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != value // 1:
        raise ValueError(f"{where}.{name}={json.dumps(value)[:60]}; expected a whole number from 0")
    return int(value)


def read_container(keywords: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    """Returns the object or list that is a keyword's value; an empty one if it is absent."""
    value = keywords.get(name, kind())
    if not isinstance(value, kind):
        raise ValueError(
            f"{where}.{name}={json.dumps(value)[:60]}; expected {'an object' if kind is dict else 'a list'}"
        )
    return value


def join_names(of: Iterable[str]) -> str:
    """Joins names, sorted, with commas."""
    return ", ".join(sorted(of)) or "none"
