"""Random JSON schemas with bounds, lengths and nestings such as hardly anybody writes."""

import random
from typing import Any

LARGE = (9007199254740991, 2**31 - 1, 2**63 - 1, 2**64 - 1, 10**15)


def _number(rng: random.Random) -> int | float:
    large = rng.choice(LARGE) * rng.choice((-1, 1))
    return rng.choice((rng.randint(-20, 20), rng.randint(-5000, 5000), large, rng.randint(-4000, 4000) / 8))


def _bounded(rng: random.Random) -> dict[str, Any]:
    """A number or an integer with some of the keywords that bound it."""
    low, high = sorted((_number(rng), _number(rng)))
    schema: dict[str, Any] = {"type": rng.choice(("integer", "number"))}
    for name, value in (("minimum", low), ("maximum", high), ("exclusiveMinimum", low), ("exclusiveMaximum", high)):
        schema |= {name: value} if rng.random() < 0.4 else {}
    return schema | ({"multipleOf": rng.choice((2, 3, 5, 7, 60, 0.25))} if rng.random() < 0.2 else {})


def _text(rng: random.Random) -> dict[str, Any]:
    """A string with lengths, a pattern or a format."""
    least = rng.choice((0, 1, 3, 40))
    schema: dict[str, Any] = {"type": "string", "minLength": least}
    schema |= (
        {"maxLength": least + rng.choice((0, 1, 5, 20, 20, 20, 60, 300 if rng.random() < 0.8 else 2000))}
        if rng.random() < 0.7
        else {}
    )
    if rng.random() < 0.25:
        return schema | {"pattern": rng.choice((r"^[a-z]+$", r"\d{2}", "^(ab|c)*$"))}
    return schema | ({"format": rng.choice(("int64", "email", "uri", "uuid", "date"))} if rng.random() < 0.2 else {})


def bounded_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """A schema that nests at most `depth` deep."""
    kind = rng.choice(("number", "text", "enum", *("object", "array", "anyOf", "allOf") * (depth > 0)))
    if kind == "object":
        named = rng.sample(("a", "b", "c", "d"), rng.randint(1, 3))
        schema = {"type": "object", "properties": {name: bounded_schema(rng, depth - 1) for name in named}}
        return schema | {"required": named[:1], "minProperties": rng.randint(0, 1), "additionalProperties": False}
    if kind == "array":
        least = rng.randint(0, 2)
        items = {"items": bounded_schema(rng, depth - 1), "minItems": least, "maxItems": least + rng.randint(0, 3)}
        unique = {"items": {"enum": [1, "x", None]}, "uniqueItems": True, "minItems": rng.randint(0, 2)}
        return {"type": "array"} | (unique if rng.random() < 0.2 else items)
    if kind == "anyOf":
        alternatives = [bounded_schema(rng, depth - 1) for _ in range(2)]
        others = {"type": ["string", "object", "integer", "number", "array"]} if rng.random() < 0.3 else {}
        return {"anyOf": alternatives, "description": "d", **others}
    if kind == "allOf":
        return {"allOf": [_bounded(rng) for _ in range(2)]}
    if kind == "enum":
        return {"enum": ["a", "bcd", 3, 2.5, None], "type": rng.choice(("string", "number")), "minLength": 2}
    return _bounded(rng) if kind == "number" else _text(rng)
