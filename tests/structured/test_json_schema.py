"""JSON schemas as automata: what matches is valid, and what is not supported is rejected by name."""

import functools
import json
import random

import pytest
from schemas import random_schema, random_text

from eagle_jax.structured.json_schema import any_object, schema_automaton

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


kept = functools.lru_cache(schema_automaton)


def matches(schema, text: str) -> bool:
    return kept(json.dumps(schema)).accepts(text.encode())


UUID = "123e4567-e89b-42d3-a456-426614174000"


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
        ({"type": "integer", "multipleOf": 15, "minimum": 1, "format": "int64"}, "15 30 105", "0 -15 10 20"),
        ({"type": "number", "multipleOf": 0.25, "format": "double"}, "0 0.5 0.75 -1.25 3", "0.1 0.35 1.3"),
        ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}, "0.5 0.50 0.999", "0.49 1 1.0 0"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 5e-1}, "0 0.25 0.49", "0.5 0.51 1"),
        ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, '"ab" "abc"', '"a" "abcd" "A1"'),
        ({"type": "string", "pattern": "^(?!x)(?!.*--)[a-z-]+$"}, '"ab-c"', '"xa" "a--b"'),
        ({"type": "string", "pattern": "^$|^a|b$"}, '"" "axx" "xb"', '"xa"'),
        ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, '"https://a.b/c"', '"" "a"'),
        ({"type": "string", "format": "uuid", "pattern": "^0[0-9a-f-]*$"}, f'"0{UUID[1:]}"', f'"1{UUID[1:]}" "0"'),
        ({"type": ["string", "null"], "enum": ["a", "bcd", None, 4], "minLength": 2}, '"bcd" null', '"a" 4'),
        ({"type": "string", "const": "x", "description": "d", "enumDescriptions": ["d"]}, '"x"', '"y"'),
        ({"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "maxProperties": 2}, '{"a":1} {}', '{"d":1}'),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, '{"a":1} {"b":1}', "{}"),
        ({"type": "object", "patternProperties": {"^[a-c]$": {"type": "null"}}}, '{"a":null} {}', '{"a":1}'),
        (
            {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
            "[3,1] [2,1,3]",
            "[1,1] [1]",
        ),
        (
            {"properties": {"a": {"type": "integer"}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            '{"a":1} {"b":2} {"a":1,"b":2}',
            '{} {"a":"x","b":1}',
        ),
        ({"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 9}]}, "-1 3 9", "4 8"),
        ({"allOf": [{"type": "number", "minimum": 2}, {"type": "integer"}], "maximum": 4}, "2 4", "1 5 2.5"),
        (
            {
                "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"type": "null"}}, "required": ["y"]}],
                "$defs": {"a": {"properties": {"x": {"type": "null"}}, "required": ["x"]}},
            },
            '{"x":null,"y":null}',
            '{"x":null} {"y":null}',
        ),
        ({"type": "object", "properties": {"a": False, "b": {"not": {}}, "c": {}}}, '{"c":1} {}', '{"a":1} {"b":1}'),
        ({"type": "string", "items": {}, "minimum": 3}, '"a"', "3"),
        ({}, '{"a":[1]} null 3 "x"', "x"),
    ],
)
def test_what_matches(schema, yes: str, no: str):
    for text in yes.split():
        assert matches(schema, text), text
        assert is_valid(text, schema)
    for text in no.split():
        assert not matches(schema, text), text


def test_null_where_openapi_says_so():
    for schema, fits in (
        ({"type": "integer", "nullable": True}, True),
        ({"type": "integer", "nullable": False}, False),
        ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": {"type": "integer"}}}, True),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, False),
    ):
        assert matches(schema, "7") and matches(schema, "null") is fits, schema
    assert not matches({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, "0")


def test_lists_of_many_long_texts_count_as_shorter_ones():
    """As tools that give feedback or take notes have them: fifty records of a thousand characters each."""
    note = {"url": {"type": "string", "format": "uri"}, "why": {"type": "string", "maxLength": 1000}}
    notes = {"type": "array", "maxItems": 50, "items": {"type": "object", "properties": note, "required": ["url"]}}
    schema = {"type": "object", "properties": {name: notes for name in ("good", "bad", "missing")}}
    automaton = schema_automaton(json.dumps(schema))
    for count, fits in ((0, True), (1, True), (6, True), (7, False)):
        text = json.dumps({"bad": [{"url": "https://a.b/c", "why": "x" * 64}] * count})
        assert automaton.accepts(text.encode()) is fits, count
        assert is_valid(text, schema)
    assert matches({"type": "array", "items": {"type": "null"}, "maxItems": 50}, json.dumps([None] * 50))


def test_a_space_may_stand_between():
    assert matches({"type": "object", "properties": {"a": {}, "b": {}}}, '{ "a" : 1 , "b": [1, 2] }')
    assert not matches({"type": "array"}, "[1,  2]")


def test_any_object_nests_five_deep():
    automaton = any_object()
    assert len(automaton.next) < 2000
    for text, fits in (('{"a": {"b": [{"c": [1]}]}}', True), ('{"a": {"b": [{"c": [[]]}]}}', False), ("[1]", False)):
        assert automaton.accepts(text.encode()) is fits, text


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"enum": [1]}, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
LINKED = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}


def test_recursive_schemas_are_followed_some_levels_deep():
    for schema, write in ((TREE, '{{"v":1,"below":[{}]}}'), (LINKED, '{{"next":{}}}')):
        text = '{"v":1}' if schema is TREE else '{"next":null}'
        for level in range(6):
            assert matches(schema, text) is (level < (4 if schema is TREE else 5)), level  # the root counts too
            assert is_valid(text, schema)
            text = write.format(text)


def test_answers_that_lack_what_another_alternative_requires_exclude_each_other():
    def parent(name: str):
        return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}

    kinds = {"properties": {"kind": {"const": "root"}}, "required": ["kind"]}
    typed = parent("page") | {"properties": {"page": {"type": "integer"}, "kind": {"const": "page"}}}
    for schemas in ([parent("page"), parent("base")], [typed, kinds]):
        assert matches({"oneOf": schemas}, '{"page":1}')
        assert is_valid('{"page":1}', {"oneOf": schemas})
    with pytest.raises(ValueError, match="may both be valid"):
        schema_automaton(json.dumps({"oneOf": [parent("page"), {**parent("base"), "required": []}]}))


def test_a_discriminator_makes_one_of_exclusive():
    def animal(kind: str):
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}

    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {k: animal(k) for k in ("cat", "dog")},
    }
    assert matches(schema, '{"kind":"dog"}') and not matches(schema, '{"kind":"cow"}')
