"""Benchmarks are scripts outside of the package; their folder is put where Python looks for modules."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
