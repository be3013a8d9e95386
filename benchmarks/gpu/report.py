"""The results as Markdown, made from the JSON and from nothing else."""

from collections.abc import Mapping
from typing import Any

from common import table

from gpu.sections import SECTIONS

REHEARSAL = (
    "**A rehearsal with tiny shapes on a CPU: it shows that all of it runs. Its times and ratios mean nothing.**"
)
SYNTHETIC = (
    "Pairs are synthetic: published shapes, random weights, acceptance by construction (benchmarks/synthetic.py)."
)


def markdown(results: Mapping[str, Any]) -> str:
    """The page of one run."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("jax", "jaxlib", "torch", "python") if machine[name])
    lines = [f"# {machine['device']}, {machine['date']}", ""]
    lines += [REHEARSAL, ""] if results["rehearsal"] else []
    lines += [
        f"{machine['devices']} device(s), {machine['cores']} cores, {versions}, commit {machine['commit'] or '-'}.",
        *([f"**{machine['excluded']}**"] if machine["excluded"] else []),
        SYNTHETIC,
        "",
        "## Targets",
        "",
        _table(results["targets"]),
    ]
    for name, section in results["sections"].items():
        lines += ["", f"## {SECTIONS[name].question}", "", f"`{name}`, {_state(section)}."]
        for title, rows in section["tables"].items():
            lines += ["", f"{title.capitalize()}:", "", _table(rows)]
    return "\n".join(lines) + "\n"


def _state(section: Mapping[str, Any]) -> str:
    error = "" if section["error"] is None else f": {section['error']}"
    return f"{section['state']} after {section['seconds']:.0f} s{error}"


def _table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    header = [column.replace("_per_s", "/s").replace("_", " ") for column in columns]
    return table(header, [[_cell(row.get(column)) for column in columns] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
