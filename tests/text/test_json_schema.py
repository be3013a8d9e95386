"""JSON schemas as regular expressions: what matches is valid, and what cannot be followed is refused by name."""

import contextlib
import itertools
import json
import random
import re

import pytest
from schemas import random_schema, random_text

from eagle_jax.text.json_regexes import between, fractions_between
from eagle_jax.text.json_schema import KEYWORDS, any_object, schema_automaton

jsonschema = pytest.importorskip("jsonschema")


def is_valid(text: str, schema) -> bool:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return checker.is_valid(json.loads(text))


@pytest.mark.parametrize("seed", range(8))
def test_texts_of_random_schemas_are_valid(seed: int):
    rng = random.Random(seed)
    for _ in range(25):
        schema = random_schema(rng, 4)
        automaton = schema_automaton(json.dumps(schema))
        for _ in range(4):
            text = random_text(rng, automaton)
            assert is_valid(text, schema), (schema, text)


def test_texts_of_another_schema_are_not_valid():
    """The check above can fail."""
    rng = random.Random(0)
    automaton = schema_automaton('{"type": "integer", "minimum": 1, "maximum": 9}')
    assert not is_valid(random_text(rng, automaton), {"type": "string"})
    assert not is_valid(random_text(rng, automaton), {"type": "integer", "maximum": 0})


def matches(schema, text: str) -> bool:
    automaton, state = schema_automaton(json.dumps(schema)), 0
    for byte in text.encode():
        state = automaton.next[state, byte] if state >= 0 else -1
    return bool(state >= 0 and automaton.final[state])


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            '{} {"a":1} {"a":1}',
            '{"a":1,} {"b":1} {"a":"1"}',
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]},
            '{"b":1} {"a":1,"b":2}',
            '{"a":1} {}',
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}},
            '{"b":1} {"a":1} {"a":[],"b":{}} {}',
            '{"a":1"b":2} {,}',
        ),
        ({"type": "object", "additionalProperties": {"type": "null"}}, '{} {"x":null,"y":null}', '{"x":1}'),
        ({"type": "object", "additionalProperties": False}, "{}", '{"x":1}'),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
            "[1,2] [1,1,2]",
            "[] [1] [1,2,1,2]",
        ),
        ({"type": "array", "maxItems": 0}, "[]", "[1]"),
        ({"type": ["string", "null"]}, '"x" null', "1"),
        ({"type": "string", "minLength": 1, "maxLength": 2}, '"a" "ü日" "\\n"', '"" "abc"'),
        ({"type": "integer", "minimum": 8, "maximum": 112}, "8 9 10 99 100 112", "7 113 08 200 1e1 -9"),
        ({"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 2}, "-2 -1 0 1", "-3 2 -0"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "0 0.5 1 1.0 0.999", "1.1 -0.1 2 01"),
        ({"type": "number", "minimum": -2}, "-2 -1.9 -0.5 0 7.25 12", "-2.1 -3"),
        ({"type": "number", "exclusiveMinimum": 0}, "0.01 1 2.5", "0 0.0 -1"),
        ({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0}, "-0.5 -0.01 -0.99", "0 -1 -1.0 0.0 -0.0"),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 3}, "2 2.0 2.99", "3 3.0 1.9"),
        ({"type": "string", "format": "password", "minLength": 1}, '"a"', '""'),
        ({"type": "null", "x-order": 1}, "null", "1"),
        ({"const": 'a"b'}, '"a\\"b"', '"ab"'),
        ({"enum": [1, "x"], "type": "string"}, '"x"', "1"),
        ({"properties": {"p": {"$ref": "#/$defs/q"}}, "$defs": {"q": {"type": "null"}}}, '{"p":null}', '{"p":1}'),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, '"s" 4', "true"),
        ({"type": "string", "pattern": "b+"}, '"abbc" "b"', '"ac"'),
        ({"type": "string", "pattern": r"^\d{2}$"}, '"12"', '"1" "١٢" "123"'),
        ({}, '{"a":[1]} null 3 "x"', "x"),
    ],
)
def test_what_matches(schema, yes: str, no: str):
    for text in yes.split():
        assert matches(schema, text), text
        assert is_valid(text, schema)
    for text in no.split():
        assert not matches(schema, text), text


def test_a_space_may_stand_between():
    assert matches({"type": "object", "properties": {"a": {}, "b": {}}}, '{ "a" : 1 , "b": [1, 2] }')
    assert not matches({"type": "array"}, "[1,  2]")


def test_any_object_nests_five_deep():
    automaton = any_object()
    assert len(automaton.next) < 2000
    for text, fits in (('{"a": {"b": [{"c": [1]}]}}', True), ('{"a": {"b": [{"c": [[]]}]}}', False), ("[1]", False)):
        state = 0
        for byte in text.encode():
            state = automaton.next[state, byte] if state >= 0 else -1
        assert bool(state >= 0 and automaton.final[state]) is fits, text


RECURSIVE = [
    {"$ref": "#"},
    {"type": "array", "items": {"$ref": "#"}},
    {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    *({"properties": {f"p{i}": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}} for i in range(16)),
]


@pytest.mark.parametrize("schema", RECURSIVE)
def test_recursive_schemas_are_refused_by_name(schema):
    with pytest.raises(ValueError, match="recursive"):
        schema_automaton(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "allows nothing"),
        ([], "expected an object"),
        ({"properties": {"a": False}, "required": ["a"]}, r"json_schema\.a is false"),
        ({"not": {"type": "string"}}, r"json_schema\.not cannot be followed"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "integer", "minimum": 4, "maximum": 2}, "no whole number is from 4 to 2"),
        ({"type": "number", "minimum": 0.5}, "not whole"),
        ({"type": "string", "format": "regex"}, "format='regex'"),
        ({"type": "string", "pattern": "a(?=b)"}, "group that begins"),
        ({"type": "string", "pattern": r"\bx"}, r"has \\b"),
        ({"type": "string", "pattern": '["x]'}, "no quotes"),
        ({"type": "string", "pattern": "x", "maxLength": 3}, "together"),
        ({"type": "string", "minLength": 4, "maxLength": 3}, "above"),
        ({"type": "string", "minLength": -1}, "whole number"),
        ({"type": "text"}, "type="),
        ({"enum": []}, "allows no value"),
        ({"enum": [1], "type": "string"}, "allows no value"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may both fit"),
        ({"allOf": [{"type": "object"}, {"type": "object"}]}, "allOf"),
        ({"anyOf": [], "title": "x"}, "list of schemas"),
        ({"$ref": "https://example.com/a"}, "within the schema"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "requires 'a'"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(schema, message: str):
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
def test_whatever_a_schema_holds_it_is_followed_or_refused(seed: int):
    rng = random.Random(seed)
    schema = spoiled(rng, random_schema(rng, 3, bounded=True))
    with contextlib.suppress(ValueError):
        schema_automaton(json.dumps(schema))


def test_a_deep_schema_is_refused():
    schema: dict = {"type": "null"}
    for _ in range(400):
        schema = {"type": "array", "items": schema, "maxItems": 1}
    with pytest.raises(ValueError, match="nests too deeply|too large"):
        schema_automaton(json.dumps(schema))


def test_a_discriminator_makes_one_of_exclusive():
    def animal(kind: str):
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}

    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {k: animal(k) for k in ("cat", "dog")},
    }
    assert matches(schema, '{"kind":"dog"}') and not matches(schema, '{"kind":"cow"}')


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_numbers(seed: int):
    rng = random.Random(seed)
    low, high = sorted(rng.randint(-1200, 1200) for _ in range(2))
    whole, fraction = (re.compile(write(low, high)) for write in (between, fractions_between))
    inside = re.compile(fractions_between(low, high + 1, above=True, below=True))
    for number in range(-1300, 1301):
        assert bool(whole.fullmatch(str(number))) == (low <= number <= high), number
        for text in (f"{number}.5", f"{number}.0", f"-{abs(number)}.25"):
            assert bool(fraction.fullmatch(text)) == (low <= float(text) <= high), (text, low, high)
            assert bool(inside.fullmatch(text)) == (low < float(text) < high + 1), (text, low, high)
    assert re.fullmatch(between(low, None), str(high)) and re.fullmatch(between(None, high), str(low))
    assert not re.fullmatch(between(low, None), str(low - 1)) and not re.fullmatch(between(None, high), str(high + 1))
