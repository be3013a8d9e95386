"""PyTorch's answers for a case: from the golden files, or computed here and now."""

import functools
import importlib
import json
import pathlib
import warnings

import numpy as np
import pytest
from cycle_cases import CYCLES
from family_cases import FAMILIES
from parity_cases import HEADS, HEADS3, Case

GOLDEN = pathlib.Path(__file__).parent / "golden"

# Tests take `source` as a parameter: the files keep them free of PyTorch, and where it is installed they also run live.
SOURCES = ("golden", "live")


@functools.cache
def answers(case: Case, source: str) -> dict[str, np.ndarray]:
    """What PyTorch computes for `case`, by name."""
    return _golden(case) if source == "golden" else _live(case)


def _golden(case: Case) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{_kind(case)}.npz") as file:
        stored = json.loads(str(file[f"{case}/config"]))
        assert stored == case.entries, f"case {case} has changed; run tests/models/make_golden.py"
        names = [name for name in file.files if name.startswith(f"{case}/") and not name.endswith("/config")]
        return {name.removeprefix(f"{case}/"): file[name] for name in names}


def _live(case: Case) -> dict[str, np.ndarray]:
    pytest.importorskip("torch")
    with warnings.catch_warnings():  # those of other packages are not ours to fail on
        warnings.simplefilter("ignore")
        return importlib.import_module(f"{_kind(case)}_torch").answers(case)


def _kind(case: Case) -> str:
    kinds = {"cycle": CYCLES, "eagle3": HEADS3, "eagle": HEADS, "family": tuple(FAMILIES.values())}
    return next((kind for kind, cases in kinds.items() if case in cases), "llama")
