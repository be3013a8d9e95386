"""What does it take to find the best tokens of a few rows, and their log-probabilities: by the CPU backend, and by XLA?

python benchmarks/ranking.py
"""

import argparse
import os
import time
from collections.abc import Callable
from unittest import mock

import jax
from common import begin, table

import eagle_jax  # noqa: F401  # sets XLA's flags
from eagle_jax.decoding.scores import Scores
from eagle_jax.ops import VARIABLE, argmax
from eagle_jax.workarounds import loop_options

VOCABULARIES, ROWS = (2048, 32_000, 128_256), (1, 10, 60)
TURNS = 15


def microseconds(function: Callable[[jax.Array], object], logits: jax.Array) -> float:
    """The least of a call's."""
    program = jax.jit(function, compiler_options=loop_options()).lower(logits).compile()
    taken = []
    for _ in range(TURNS):
        start = time.perf_counter()
        jax.block_until_ready(program(logits))
        taken.append(time.perf_counter() - start)
    return 1e6 * min(taken)


def measured(logits: jax.Array, way: str) -> tuple[float, float]:
    """Of the draw of every row, and of its ten best scores."""
    with mock.patch.dict(os.environ, {VARIABLE: way}):
        return microseconds(lambda x: argmax(x), logits), microseconds(lambda x: Scores(x, 2.0).best(10), logits)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    lines = []
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            logits = 3 * jax.random.normal(jax.random.key(rows), (rows, vocabulary))
            ours, theirs = (measured(logits, way) for way in ("cpu", "xla"))
            times = [f"{time_:,.0f} us" for pair in zip(ours, theirs, strict=True) for time_ in pair]
            lines.append([f"{vocabulary:,}", rows, *times, f"{theirs[1] / ours[1]:.1f}"])
    header = ["largest, ours", "largest, XLA", "ten best, ours", "ten best, XLA", "ten best, times"]
    print(table(["tokens", "rows", *header], lines))


if __name__ == "__main__":
    begin(main)
