"""Reads and writes `calibration.json` in a head's folder: measured acceptance rates of its draft tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from eagle_jax.converters.files import read_json
from eagle_jax.converters.hf.values import is_number
from eagle_jax.decoding.calibration import DEPTHS, LOG_ODDS, Prior
from eagle_jax.durable import atomic_write

NAME = "calibration.json"
VERSION = 1


def read_prior(folder: Path) -> Prior | None:
    """Reads the calibration in a head's folder; None if there is none.

    Raises:
        ValueError: the file is damaged, or of another version.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    entries = read_json(path)
    expected = {"version": VERSION, "log_odds": LOG_ODDS.tolist()}
    for name, value in expected.items():
        if entries.get(name) != value:
            raise ValueError(f"{path} has {name}={entries.get(name)!r}, expected {value!r}; {_REMEDY}")
    return Prior(*(_table(path, name, entries.get(name)) for name in ("greedy", "sampled")))


def write_prior(folder: Path, prior: Prior) -> Path:
    """Writes the file, in one step, and returns its path."""
    tables = {name: np.round(getattr(prior, name).astype(np.float64), 4).tolist() for name in ("greedy", "sampled")}
    content = {"version": VERSION, "log_odds": LOG_ODDS.tolist()} | tables
    path = folder / NAME
    with atomic_write(path) as file:
        file.write((json.dumps(content) + "\n").encode())
    return path


_REMEDY = "delete it, or measure again with `eagle-jax tune --calibrate`"


def _table(path: Path, name: str, rows: Any) -> Float[np.ndarray, "d k"]:
    shape = DEPTHS, len(LOG_ODDS)
    lists = rows if isinstance(rows, list) and all(isinstance(row, list) for row in rows) else []
    are_numbers = all(is_number(value) and 0 <= value <= 1 for row in lists for value in row)
    is_ragged = len({len(row) for row in lists}) != 1
    table = np.zeros(0, np.float32) if is_ragged or not are_numbers else np.array(lists, np.float32)
    if table.shape != shape or not ((table >= 0) & (table <= 1)).all() or (np.diff(table) < 0).any():
        raise ValueError(
            f"{path} has a {name} that is no table of {shape[0]} rows with {shape[1]} probabilities each, none below "
            f"the one before; {_REMEDY}"
        )
    return table
