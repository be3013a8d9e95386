"""A job's output: one part per host while it runs, then one file in the order of the input."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eagle_jax.durable import atomic_write
from eagle_jax.jobs.journal import entries, without_number


def part_path(output: Path, host: int, hosts: int) -> Path:
    """Returns the path of a host's part: `answers.jsonl.part-00000-of-00002`."""
    return output.with_name(f"{output.name}.part-{host:05}-of-{hosts:05}")


def rows_of_host(rows: int, host: int, hosts: int) -> range:
    """Returns the numbers of a host's rows: every `hosts`-th, which balances the load."""
    return range(host, rows, hosts)


def merge(output: Path, rows: int, hosts: int) -> list[str]:
    """Writes the output and removes the parts, if all parts are complete.

    Several hosts may do so at the same time: each writes a temporary file and renames it.

    Returns:
        A sentence on each incomplete part; none if the output exists.
    """
    parts = [part_path(output, host, hosts) for host in range(hosts)]
    try:
        offsets, missing = _row_offsets(parts, rows)
        if not missing:
            _write(output, parts, offsets)
    except FileNotFoundError as error:
        missing = [f"{error.filename} does not exist"]
    if missing and not output.exists():  # else another host has merged and removed the parts
        return missing
    remove_parts(output, hosts)
    return []


def remove_parts(output: Path, hosts: int) -> None:
    """Removes the parts."""
    for host in range(hosts):
        part_path(output, host, hosts).unlink(missing_ok=True)


def _row_offsets(parts: Sequence[Path], rows: int) -> tuple[np.ndarray, list[str]]:
    """Returns the byte offset of each row `[rows]` in its part, and a sentence on each incomplete part."""
    offsets, missing = np.full(rows, -1, np.int64), []
    for host, part in enumerate(parts):
        part_rows = rows_of_host(rows, host, len(parts))
        if not part.exists():
            missing.append(f"{part} does not exist")
            continue
        offset = 0
        for number, line in entries(part):
            if number in part_rows:
                offsets[number] = offset
            offset += len(line)
        num_missing = int((offsets[part_rows.start :: part_rows.step] < 0).sum())
        missing += [f"{part} lacks {num_missing} of its {len(part_rows)} rows"] if num_missing else []
    return offsets, missing


def _write(output: Path, parts: Sequence[Path], offsets: np.ndarray) -> None:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(part.open("rb")) for part in parts]
        merged = stack.enter_context(atomic_write(output))
        for number, offset in enumerate(offsets.tolist()):
            file = files[number % len(files)]
            file.seek(offset)
            merged.write(without_number(file.readline()))
