"""What a cycle is made of: what checking more rows costs, and what drafting costs beside it."""

from eagle_jax.api.tuning import Start
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.aside import Aside, Blank
from eagle_jax.drafters.base import Drafter, Plain
from gpu.cycles import ROUNDED, published, seconds_a_cycle, with_rounded_head
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    pair = scale.pair()
    drafter = published(pair.model, scale)
    start = Start(pair.model, drafter, scale.asks(pair.model, pair.chart, 1))
    nodes = drafter.shape.nodes
    checks = {rows: Blank(TreeShape(nodes=rows, depth=min(rows - 1, scale.depth))) for rows in (nodes, *scale.nodes)}
    light = published(with_rounded_head(pair.model), scale)
    drafters: dict[str | int, Drafter] = {"plain": Plain(), "cycle": drafter, "draft": Aside(drafter)}
    drafters |= {"light cycle": light, "light draft": Aside(light)}
    seconds = seconds_a_cycle(start, drafters | {nodes: checks[nodes]}, scale)
    drafting = seconds["draft"] - seconds["plain"]
    parts = {
        "plain step": seconds["plain"],
        f"pass over {nodes} nodes": seconds[nodes],
        f"drafting {scale.tree}": drafting,
        "rest": seconds["cycle"] - seconds[nodes] - drafting,
        "whole cycle": seconds["cycle"],
        f"drafting, {ROUNDED}": seconds["light draft"] - seconds["plain"],
        f"whole cycle, {ROUNDED}": seconds["light cycle"],
    }
    for part, spent in parts.items():
        record("parts", part=part, ms=1e3 * spent, of_a_plain_step=spent / seconds["plain"])
    seconds = seconds_a_cycle(start, checks, scale)
    for rows in scale.nodes:
        record("rows", rows=rows, ms=1e3 * seconds[rows], of_one_row=seconds[rows] / seconds[1])
