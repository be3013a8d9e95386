"""What the numbers were to be, and whether they are."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Sections = Mapping[str, Mapping[str, Any]]
MET, MISSED, UNKNOWN = "met", "not met", "not measured"


@dataclasses.dataclass(frozen=True)
class Target:
    """One of them.

    Attributes:
        what: in words.
        wanted: the bound.
        at_least: whether it is one from below.
        found: section, table, column, and which row of it, as column and value.
    """

    what: str
    wanted: float
    at_least: bool
    found: tuple[str, str, str, tuple[str, Any]]

    def state(self, value: float | None) -> str:
        if value is None:
            return UNKNOWN
        return MET if (value >= self.wanted if self.at_least else value <= self.wanted) else MISSED


def _weights(name: str) -> tuple[str, str, str, tuple[str, Any]]:
    return ("decode", "plain", "of_copy_bandwidth", ("weights", name))


TARGETS = (
    Target("plain decoding at the 8B shape in bfloat16, of copy bandwidth", 0.75, True, _weights("bfloat16")),
    Target("the same in int8", 0.60, True, _weights("int8")),
    Target("the same in int4", 0.55, True, _weights("int4")),
    Target("the same in int4, by our kernel", 0.55, True, _weights("int4, kernel")),
    Target("a pass over 60 nodes, in plain steps", 1.15, False, ("cycle", "rows", "of_one_row", ("rows", 60))),
    Target(
        "a whole EAGLE-3 cycle, depth 7, in plain steps",
        1.33,
        False,
        ("cycle", "parts", "of_a_plain_step", ("part", "whole cycle")),
    ),
    Target(
        "speedup for each token that a pass commits",
        0.75,
        True,
        ("speedup", "answers", "speedup_per_token_a_pass", ("method", "EAGLE-3, tree (60, 7, 10)")),
    ),
    Target(
        "against the original PyTorch EAGLE with the same pair and tree",
        2.0,
        True,
        ("eagle", "answers", "against_the_original", ("method", "eagle_jax EAGLE")),
    ),
    # as elsewhere, what a clock cannot tell from the same speed counts as the same
    Target("64 requests together, against plain decoding", 0.98, True, ("batch", "batches", "speedup", ("rows", 64))),
)


def held(sections: Sections) -> list[dict[str, Any]]:
    """All targets with what was found, as rows."""
    rows = []
    for target in TARGETS:
        value = _value(sections, *target.found)
        bound = f"{'at least' if target.at_least else 'at most'} {target.wanted:g}"
        rows.append({"target": target.what, "wanted": bound, "found": value, "state": target.state(value)})
    return rows


def _value(sections: Sections, section: str, table: str, column: str, where: tuple[str, Any]) -> float | None:
    rows = sections.get(section, {}).get("tables", {}).get(table, [])
    return next((row.get(column) for row in rows if row.get(where[0]) == where[1]), None)
