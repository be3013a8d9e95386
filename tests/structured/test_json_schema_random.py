"""Random bounds, lengths and nestings: every automaton is there soon or refused, and means what jsonschema means.

The two thousand of the proof take two to four minutes.
"""

import json
import random
import time
from typing import Any

import pytest
from schemas import random_text

from benchmarks.common.schemas import bounded_schema
from eagle_jax.structured.byte_automaton import SECONDS
from eagle_jax.structured.json_schema import schema_automaton

jsonschema = pytest.importorskip("jsonschema")


def spoiled(rng: random.Random, value: Any) -> Any:
    """A value like another one, with something changed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(sorted(value))
        return value | {name: spoiled(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        return [*value[:-1], spoiled(rng, value[-1])] if rng.random() < 0.6 else [*value, value[0]]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return rng.choice((value + 1, value - 1, -value, value * 10, value + 0.125))
    if isinstance(value, str):
        return rng.choice((value[:-1], value + "a", value + value, value.upper(), "ü" + value[1:]))
    return rng.choice((value, [value], {"a": value}, 0, "", None))


def check(seed: int, members: int, depth: int = 3) -> tuple[float, bool]:
    """Compares one schema's automaton with jsonschema; the seconds that it took, and whether it was made."""
    rng = random.Random(seed)
    schema = bounded_schema(rng, depth)
    valid = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    start = time.process_time()
    try:
        automaton = schema_automaton(json.dumps(schema))
    except ValueError:
        return time.process_time() - start, False
    seconds = time.process_time() - start
    for _ in range(members):
        member = random_text(rng, automaton, rng.choice((5, 60)))
        value = json.loads(member)
        assert valid.is_valid(value), (schema, member)
        other = spoiled(rng, value)
        if automaton.accepts(json.dumps(other, ensure_ascii=False).encode()):
            assert valid.is_valid(other), (schema, other)
        elif is_plain(schema) and valid.is_valid(other) and written_plainly(other, schema):
            raise AssertionError(f"{other!r} is valid, but not accepted by {schema}")
    return seconds, True


def is_plain(schema: dict[str, Any]) -> bool:
    """Whether the automaton has all values of a schema, in JSON's plain spelling."""
    return schema.get("type") in ("integer", "number") or (
        schema.get("type") == "string"
        and not schema.keys() & {"pattern", "format"}
        and (schema.get("maxLength", 0) <= 1800)
    )


def written_plainly(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is written without an exponent, and as an integer where it has to be one."""
    whole = schema["type"] == "integer" or schema.get("multipleOf", 0.5) >= 1
    return isinstance(value, str) or "e" not in repr(value) and (isinstance(value, int) or not whole)


def test_a_hundred_random_schemas():
    made = [check(seed, members=2, depth=2) for seed in range(100)]
    assert max(seconds for seconds, _ in made) < SECONDS and sum(is_made for _, is_made in made) > 70


@pytest.mark.proof
@pytest.mark.parametrize("first", [0, 1000])
def test_two_thousand_random_schemas(first: int):
    made = [check(seed, members=6) for seed in range(first, first + 1000)]
    # of the CPU, beside others and with every annotation checked: a few seconds alone
    assert max(seconds for seconds, _ in made) < SECONDS, sorted(made)[-5:]
    assert sum(is_made for _, is_made in made) > 750
