"""What a cycle is made of: what checking more rows costs, and what drafting costs beside it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.aside import Aside, Blank
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.inspection.start import Start
from gpu.cycles import ROUNDED, kernels_a_cycle, published, seconds_a_cycle, with_rounded_head
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    pair = scale.pair()
    drafter = published(pair.model, scale)
    start = Start(pair.model, drafter, scale.asks(pair.model, pair.chart, 1))
    whole: dict[str, Drafter] = {"plain": Plain(), "cycle": drafter}
    light = published(with_rounded_head(pair.model), scale)
    parts = {"pass": _blank(drafter.shape.nodes, scale), "draft": Aside(drafter)}
    parts |= {"light cycle": light, "light draft": Aside(light)}
    # what matters most is known, roughly, before the others are compiled
    record_parts(start, whole, dataclasses.replace(scale, repeats=1), record)
    record_parts(start, whole | parts, scale, record)
    record_rows(start, {rows: _blank(rows, scale) for rows in scale.nodes}, scale, record)


def graphs(scale: Scale, record: Record) -> None:
    """The plain step and the whole cycle alone."""
    pair = scale.pair()
    drafter = published(pair.model, scale)
    start = Start(pair.model, drafter, scale.asks(pair.model, pair.chart, 1))
    record_parts(start, {"plain": Plain(), "cycle": drafter}, scale, record)


def record_parts(start: Start, drafters: Mapping[str, Drafter], scale: Scale, record: Record) -> None:
    kernels = kernels_a_cycle(start, drafters)
    for seconds in seconds_a_cycle(start, drafters, scale):
        for part, (spent, key) in _parts(seconds, scale).items():
            of_a_step = spent / seconds["plain"]
            record("parts", part=part, ms=1e3 * spent, of_a_plain_step=of_a_step, kernels=kernels.get(key))


def record_rows(start: Start, checks: Mapping[int, Drafter], scale: Scale, record: Record) -> None:
    kernels = kernels_a_cycle(start, checks)
    for seconds in seconds_a_cycle(start, checks, scale):
        for rows, spent in seconds.items():
            record("rows", rows=rows, ms=1e3 * spent, of_one_row=spent / seconds[1], kernels=kernels[rows])


def _parts(seconds: Mapping[str, float], scale: Scale) -> dict[str, tuple[float, str | None]]:
    """The parts that are known, and which drafter's cycle each is, if it is one."""
    known: dict[str, Any] = {key: (spent, key) for key, spent in seconds.items()}
    found = {"plain step": known["plain"], "whole cycle": known["cycle"]}
    if "draft" in seconds:
        drafting = seconds["draft"] - seconds["plain"]
        found |= {
            f"pass over {scale.tree[0]} nodes": known["pass"],
            f"drafting {scale.tree}": (drafting, None),
            "rest": (seconds["cycle"] - seconds["pass"] - drafting, None),
            f"drafting, {ROUNDED}": (seconds["light draft"] - seconds["plain"], None),
            f"whole cycle, {ROUNDED}": known["light cycle"],
        }
    return found


def _blank(rows: int, scale: Scale) -> Blank:
    return Blank(TreeShape(nodes=rows, depth=min(rows - 1, scale.depth)))
