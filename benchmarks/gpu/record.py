"""Rows of a section's tables on their way to the results: one line of JSON each, so that what is there stays there."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

# record(table, column=value, ...)
Record = Callable[..., None]
Tables = dict[str, list[dict[str, Any]]]


def writer(path: pathlib.Path) -> Record:
    """Appends every row to a file at once."""

    def record(table: str, /, **row: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"table": table, "row": row}) + "\n")

    return record


def tables(path: pathlib.Path) -> Tables:
    """The rows by table, as they came; a line that was broken off counts for nothing."""
    found: Tables = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.endswith("}}"):
            entry = json.loads(line)
            found.setdefault(entry["table"], []).append(entry["row"])
    return found
