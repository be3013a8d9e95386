"""Random JSON schemas, and random texts that an automaton accepts."""

import collections
import random
from typing import Any

import numpy as np

from eagle_jax.structured.byte_automaton import ByteAutomaton
from eagle_jax.structured.json_regexes import FORMATS

BOUNDED = ("date", "uuid", "ipv4", "ipv6", "duration")
NAMES = ("name", "age", "tags", "price", "is_ok", "größe", "a b", 'q"t')


def random_schema(rng: random.Random, depth: int, *, bounded: bool = False) -> dict[str, Any]:
    """A schema that nests at most `depth` deep; `bounded`: its answers are at most some hundred bytes long."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    kind = rng.choice(kinds + ["object", "object", "array", "anyOf"] * (depth > 0))
    if kind == "object":
        named = rng.sample(NAMES, rng.randint(0, 3))
        schema = {
            "type": "object",
            "properties": {name: random_schema(rng, depth - 1, bounded=bounded) for name in named},
            "required": [name for name in named if rng.random() < 0.6],
        }
        return schema | ({"additionalProperties": False} if bounded or rng.random() < 0.5 else {})
    if kind == "array":
        if rng.random() < 0.2:
            return {
                "type": "array",
                "prefixItems": [random_schema(rng, depth - 1, bounded=bounded) for _ in range(2)],
                "minItems": 2,
            }
        least = rng.randint(0, 2)
        bounds = {"minItems": least, "maxItems": least + rng.randint(0, 2)} if bounded or rng.random() < 0.7 else {}
        return {"type": "array", "items": random_schema(rng, depth - 1, bounded=bounded), **bounds}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1, bounded=bounded) for _ in range(2)]}
    return _leaf(rng, kind, bounded)


def _leaf(rng: random.Random, kind: str, bounded: bool) -> dict[str, Any]:
    if kind in ("integer", "number"):
        low = rng.randint(-300, 300)
        bounds = {"minimum": low, "maximum": low + rng.randint(0, 1500)}
        return {"type": kind} | {name: bound for name, bound in bounds.items() if bounded or rng.random() < 0.6}
    if kind == "string":
        least = rng.randint(0, 5)
        return {"type": "string"} | (
            {"minLength": least, "maxLength": least + 6} if bounded or rng.random() < 0.6 else {}
        )
    leaves = {
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "enum": {"enum": rng.sample(["red", "gr\u00fcn", 3, 2.5, None, True, "a\\b", [1, "x"], {"k": 0}], 3)},
        "const": {"const": rng.choice(["on", 7, {"a": [1, 2]}])},
        "format": {"type": "string", "format": rng.choice(BOUNDED if bounded else sorted(FORMATS))},
        "pattern": {
            "type": "string",
            "pattern": rng.choice([r"^[A-Z]{2}\d{3}$"] if bounded else [r"\w+-\w", "^(?:ab|c.)+", r"[^x]\s"]),
        },
    }
    return leaves[kind]


def random_text(rng: random.Random, automaton: ByteAutomaton, length: int = 60) -> str:
    """A text that is complete in the automaton, which ends soon after `length` bytes."""
    steps = _steps_to_end(automaton)
    state, text = 0, bytearray()
    while not automaton.final[state] or rng.random() > 0.2 and (automaton.next[state] >= 0).any():
        choices = np.flatnonzero(automaton.next[state] >= 0)
        if len(text) > length:
            nearest = steps[automaton.next[state][choices]]
            choices = choices[nearest == nearest.min()]
            if automaton.final[state]:
                break
        byte = rng.choice(choices.tolist())
        text.append(byte)
        state = automaton.next[state, byte]
    return text.decode()


_last: list[tuple[ByteAutomaton, np.ndarray]] = []  # the automaton that was asked for last


def _steps_to_end(automaton: ByteAutomaton) -> np.ndarray:
    """Bytes from each state to the nearest end."""
    if _last and _last[0][0] is automaton:
        return _last[0][1]
    steps, before = np.full(len(automaton.final), 10**6), collections.defaultdict(set)
    for state, to in set(zip(*(part.tolist() for part in _edges(automaton)), strict=True)):
        before[to].add(state)
    reached, count = set(np.flatnonzero(automaton.final).tolist()), 0
    while reached:
        steps[list(reached)] = count
        reached, count = {one for state in reached for one in before[state] if steps[one] == 10**6}, count + 1
    _last[:] = [(automaton, steps)]
    return steps


def _edges(automaton: ByteAutomaton) -> tuple[np.ndarray, np.ndarray]:
    states, bytes_ = np.nonzero(automaton.next >= 0)
    return states, automaton.next[states, bytes_]
