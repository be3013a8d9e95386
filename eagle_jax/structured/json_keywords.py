"""The keywords of JSON schemas: which there are, and how their values are read."""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
# Keywords that describe, and never change what is valid.
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
    """Where a schema stands.

    Attributes:
        name: name of the place, as errors say it.
        root: the schema that references lead on from.
        refs: references on the way here.
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


def followed(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the keywords of a schema that change what is valid.

    Raises:
        ValueError: one of them cannot be followed, or is spelt almost like one that can.
    """
    keywords = {name: value for name, value in schema.items() if name in FOLLOWED}
    for name in schema:
        if name in keywords or name in NOTES or name.startswith("x-"):
            continue
        if name in REFUSED:
            kinds = schema.get("type")
            accepted = KEYWORDS.get(kinds, APPLIED) if isinstance(kinds, str) else APPLIED
            raise ValueError(f"{where}.{name} cannot be followed here; the keywords that can are {names(accepted)}")
        # any other word describes, as validators have it, but a slip of the pen does not
        meant = difflib.get_close_matches(name, FOLLOWED | REFUSED, 1, 0.85)
        if meant:
            raise ValueError(f"{where}.{name} is no keyword; expected {meant[0]}, or leave it out")
    return keywords


def types(value: Any, where: str) -> list[str]:
    """Returns the types that `type` names, one or several."""
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or not all(kind in TYPES for kind in kinds):
        raise ValueError(f"{where}.type={json.dumps(value)[:60]}; expected one of {', '.join(TYPES)}, or a list")
    return kinds


def guessed_types(keywords: Mapping[str, Any]) -> list[str]:
    """Returns the types that answers have where a schema states none: those that its keywords are about."""
    return [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & keywords.keys()]


def count(keywords: Mapping[str, Any], name: str, where: str) -> int | None:
    """Returns a number of characters, items or properties."""
    value = keywords.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != value // 1:
        raise ValueError(f"{where}.{name}={json.dumps(value)[:60]}; expected a whole number from 0")
    return int(value)


def entries(keywords: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    """Returns the object or list that a keyword has; an empty one where it is not there."""
    value = keywords.get(name, kind())
    if not isinstance(value, kind):
        raise ValueError(
            f"{where}.{name}={json.dumps(value)[:60]}; expected {'an object' if kind is dict else 'a list'}"
        )
    return value


def names(of: Iterable[str]) -> str:
    """Joins words in a line."""
    return ", ".join(sorted(of)) or "none"
