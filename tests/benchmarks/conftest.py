"""Benchmarks are outside of the installed package; the checkout's root is put where Python looks for modules."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
