"""Renders the report as a self-contained HTML page: tables, figures, and a draft tree."""

from pathlib import Path

from eagle_jax.evaluation import drawing
from eagle_jax.evaluation.metrics import OVERALL, Figures
from eagle_jax.evaluation.results import Results
from eagle_jax.evaluation.tables import shares, tables

TEMPLATE = Path(__file__).with_name("page.html.j2")


def render(results: Results) -> str:
    """Renders the page of a run's results."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    tree = results.traces.get("tree")
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        figures=drawing.STYLE.read_text(encoding="utf-8"),
        run=results.run,
        settings=results.run["settings"],
        template=results.run.get("chat_template"),
        methods=list(results.methods),
        tables=tables(results),
        notes=results.notes,
        speedups=None if results.plain is None else _speedups(results),
        distribution=drawing.grid(shares(results), "accepted length distribution", "tokens"),
        depths=_depths(results),
        parts=_parts(results),
        budgets=_budgets(results),
        sizes=_sizes(results),
        tree=tree,
        tree_picture=tree
        and drawing.tree(tree["parents"], tree["texts"], tree["accepted"], tree["drawn"], "a draft tree"),
    )


def _speedups(results: Results) -> str:
    rows = {group: {name: row.speedup for name, row in by_name.items()} for group, by_name in results.groups.items()}
    return drawing.dots(rows, "speedup by task and method", "x")


def _depths(results: Results) -> str:
    values = {name: row.accepted_by_depth for name, row in results.groups[OVERALL].items()}
    return drawing.lines(values, "acceptance by depth", "depth")


def _sizes(results: Results) -> list[str]:
    """Returns the labels of all tree sizes."""
    return [_size(nodes) for nodes in sorted({use.nodes for row in _overall(results) for use in row.spent})]


def _budgets(results: Results) -> str | None:
    """Draws the seconds of steps by tree size; None if they were not recorded."""
    sizes = _sizes(results)
    if not sizes:
        return None
    rows = {}
    for name, row in results.groups[OVERALL].items():
        seconds = dict.fromkeys(sizes, 0.0) | {_size(use.nodes): use.seconds for use in row.spent}
        rows[name] = seconds
    return drawing.stacked(rows, "seconds of steps by the size of their trees", "s")


def _overall(results: Results) -> list[Figures]:
    return list(results.groups[OVERALL].values())


def _size(nodes: int) -> str:
    return "plain decoding" if nodes == 1 else f"{nodes} nodes"


def _parts(results: Results) -> str | None:
    parts = results.traces.get("parts")
    if not parts:
        return None
    rows = {
        name: {part: part_seconds[part] * 1000 for part in ("draft", "verify", "rest")}
        for name, part_seconds in parts.items()
    }
    return drawing.stacked(rows, "time of a step: draft, verify, rest", "ms")
