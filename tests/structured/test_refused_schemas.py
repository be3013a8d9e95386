"""JSON schemas that are not supported: rejected by the name and the place of what is wrong, whatever they hold."""

import contextlib
import itertools
import json
import random

import pytest
from schemas import random_schema
from test_json_schema import matches

from eagle_jax.structured.json_keywords import KEYWORDS
from eagle_jax.structured.json_schema import PLACE_KEYWORD, schema_automaton


def test_errors_name_the_place_of_the_schema_that_a_user_wrote():
    inner = {"type": "array", "items": {"properties": {"a b": {"$ref": "#/properties/age"}}}}
    user = {PLACE_KEYWORD: "guided_json", "properties": {"age": {"type": "integer", "not": {}}, "list": inner}}
    with pytest.raises(ValueError, match=r"^guided_json\.properties\.age\.not is not supported"):
        schema_automaton(json.dumps(user))
    user["properties"]["age"] = {"type": "integer", "minimum": 3}
    wrapped = {"anyOf": [{"properties": {"arguments": user}, "required": ["arguments"]}]}
    assert matches(wrapped, '{"arguments":{"age":3,"list":[{"a b":4}]}}'), "references lead on from the user's root"
    inner["items"]["properties"]["a b"] = {"type": "decimal"}
    with pytest.raises(ValueError, match=r'^guided_json\.properties\.list\.items\.properties\["a b"\]\.type="decimal"'):
        schema_automaton(json.dumps(wrapped))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 9000, "items": {"type": "string", "format": "date-time"}},
        {"type": "array", "minItems": 1000, "items": {"type": "string", "format": "date-time"}},
        {"type": "string", "pattern": "^(ab?)*$", "minLength": 30000},
        {"type": "string", "pattern": "^[a-z]{0,150}a[a-z]{9}$", "minLength": 100},
    ],
)
def test_what_is_too_large_is_named_by_its_place(schema):
    for whole, place in ((schema | {PLACE_KEYWORD: "guided_json"}, r"guided_json"), (schema, "json_schema")):
        with pytest.raises(ValueError, match=f"^the automaton of {place} is too large"):
            schema_automaton(json.dumps(whole))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#", PLACE_KEYWORD: "guided_json"},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    ],
)
def test_recursion_without_an_end_is_refused_by_name(schema):
    with pytest.raises(ValueError, match="recursive and does not end"):
        schema_automaton(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "allows nothing"),
        ([], "expected an object"),
        ({"properties": {"a": False}, "required": ["a"]}, r"json_schema\.properties\.a is false"),
        ({"not": {"type": "string"}}, r"json_schema\.not is not supported"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "minimum": 4, "maximum": 2}, "no whole number is from 4 to 2"),
        ({"type": "integer", "minimum": 4, "maximum": 6, "multipleOf": 7}, "no whole number .* and a multiple of 7"),
        ({"type": "integer", "multipleOf": 0}, "above 0"),
        ({"type": "string", "format": "regex"}, "format='regex'"),
        ({"type": "string", "pattern": "^a$", "minLength": 3}, "allows no string"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "types exclude each other"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern twice"),
        ({"type": "string", "maxlength": 3}, "not a keyword; expected maxLength"),
        ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, "patternProperties has several"),
        ({"type": "string", "pattern": "a(?=b)"}, "group that begins"),
        ({"type": "string", "pattern": r"\bx"}, r"has \\b"),
        ({"type": "string", "pattern": '["x]'}, "no quotes"),
        ({"type": "string", "minLength": 4, "maxLength": 3}, "above"),
        ({"type": "string", "minLength": -1}, "whole number"),
        ({"type": "text"}, "type="),
        ({"enum": []}, "allows no value"),
        ({"enum": [1], "type": "string"}, "allows no value"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may both be valid"),
        ({"anyOf": [], "title": "x"}, "list of schemas"),
        ({"$ref": "https://example.com/a"}, "within the schema"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "requires 'a'"),
    ],
)
def test_unsupported_schemas_are_rejected_by_name(schema, message: str):
    with pytest.raises(ValueError, match=message):
        schema_automaton(json.dumps(schema))


JUNK = [
    None,
    True,
    -1,
    2.5,
    "x",
    "",
    [],
    {},
    [1],
    "object",
    ["null", 7],
    {"$ref": "#"},
    {"$ref": "#/anyOf/0"},
    "(",
    1e400,
]


def spoiled(rng: random.Random, value):
    """A schema with something else here and there."""
    if isinstance(value, dict):
        value = {key: spoiled(rng, inner) for key, inner in value.items()}
        return value | ({rng.choice(sorted(KEYS)): rng.choice(JUNK)} if rng.random() < 0.3 else {})
    if isinstance(value, list):
        return [spoiled(rng, inner) for inner in value]
    return rng.choice(JUNK) if rng.random() < 0.08 else value


KEYS = {"type", "required", "items", "anyOf", "oneOf", "$ref", "const", *itertools.chain(*KEYWORDS.values())}


@pytest.mark.parametrize("seed", range(300))
def test_any_schema_is_compiled_or_rejected(seed: int):
    rng = random.Random(seed)
    schema = spoiled(rng, random_schema(rng, 3, bounded=True))
    with contextlib.suppress(ValueError):
        schema_automaton(json.dumps(schema))


def test_a_deep_schema_is_refused():
    schema: dict = {"type": "null"}
    for _ in range(400):
        schema = {"type": "array", "items": schema, "maxItems": 1}
    with pytest.raises(ValueError, match="nested too deeply|too large"):
        schema_automaton(json.dumps(schema))
