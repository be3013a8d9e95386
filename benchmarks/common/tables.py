"""Tables: printed as Markdown, and written as a line of JSON each where `BENCHMARK_TABLES` names a file."""

import json
import os
import sys
from collections.abc import Sequence

VARIABLE = "BENCHMARK_TABLES"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; in the file a later table replaces an earlier one with the same title."""
    print(f"\n{title}\n\n{markdown(columns, rows)}", flush=True)
    if path := os.environ.get(VARIABLE):
        line = json.dumps({"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}, default=str)
        with open(path, "a", encoding="utf-8") as file:
            print(line, file=file)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    """Floats with about three significant digits."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "NO"
        case float():
            size = abs(value)
            return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.{2 + (size < 1)}f}"
    return str(value)


def progress(done: int, total: int) -> None:
    """One line of stderr."""
    print(f"\r{done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)
