"""A job's output: one part for each host while it runs, in the end one file in the order of the input."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eagle_jax.durable import replacing
from eagle_jax.jobs.journal import entries, without_number


def part_of(output: Path, host: int, hosts: int) -> Path:
    """Returns the part that a host writes: `answers.jsonl.part-00000-of-00002`."""
    return output.with_name(f"{output.name}.part-{host:05}-of-{hosts:05}")


def share(rows: int, host: int, hosts: int) -> range:
    """Returns the numbers of the rows of a host: every `hosts`-th, so that each host gets as much of everything."""
    return range(host, rows, hosts)


def merge(output: Path, rows: int, hosts: int) -> list[str]:
    """Writes the output if all parts are complete, and takes the parts away then.

    Any host may do it, several at once too: each writes the same file under a name of its own and renames it.

    Returns:
        What is missing, a sentence for each part; none if the output is there.
    """
    parts = [part_of(output, host, hosts) for host in range(hosts)]
    try:
        where, missing = _where(parts, rows)
        if not missing:
            _write(output, parts, where)
    except FileNotFoundError as gone:
        missing = [f"{gone.filename} is not there"]
    if missing and not output.exists():  # if it exists another host was first, and has taken the parts away
        return missing
    remove(output, hosts)
    return []


def remove(output: Path, hosts: int) -> None:
    """Takes the parts away."""
    for host in range(hosts):
        part_of(output, host, hosts).unlink(missing_ok=True)


def _where(parts: Sequence[Path], rows: int) -> tuple[np.ndarray, list[str]]:
    """Returns where each row `[rows]` begins in the part that holds it, and what is missing."""
    where, missing = np.full(rows, -1, np.int64), []
    for host, part in enumerate(parts):
        part_rows = share(rows, host, len(parts))
        if not part.exists():
            missing.append(f"{part} is not there")
            continue
        at = 0
        for number, line in entries(part):
            if number in part_rows:
                where[number] = at
            at += len(line)
        absent = int((where[part_rows.start :: part_rows.step] < 0).sum())
        missing += [f"{part} lacks {absent} of its {len(part_rows)} rows"] if absent else []
    return where, missing


def _write(output: Path, parts: Sequence[Path], where: np.ndarray) -> None:
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(part.open("rb")) for part in parts]
        merged = opened.enter_context(replacing(output))
        for number, at in enumerate(where.tolist()):
            file = files[number % len(files)]
            file.seek(at)
            merged.write(without_number(file.readline()))
