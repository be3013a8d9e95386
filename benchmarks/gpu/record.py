"""Rows of a section's tables on their way to the results: one line of JSON each, so that what is there stays there."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

# record(table, column=value, ...); a later row whose first column is the same takes the place of the earlier
Record = Callable[..., None]
Tables = dict[str, list[dict[str, Any]]]


def writer(path: pathlib.Path) -> Record:
    """Appends every row to a file at once."""

    def record(table: str, /, **row: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"table": table, "row": row}) + "\n")

    return record


def tables(path: pathlib.Path) -> Tables:
    """The rows by table, in the order of their names; a line that was broken off counts for nothing."""
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.endswith("}}"):
            entry = json.loads(line)
            row = entry["row"]
            found.setdefault(entry["table"], {})[next(iter(row.values()))] = row
    return {table: list(rows.values()) for table, rows in found.items()}
