"""What does drafting gain on a CPU for a model of usual width, whose weights come from memory and not from a cache?

A synthetic pair (`synthetic.py`): the shape is a real model's, acceptance is set by construction. The shipped pair says
nothing about this, since its weights fit a CPU's cache.

    python benchmarks/wide.py
"""

import argparse

from chart import PUBLISHED
from common import begin, table
from synthetic import NAMES, Shape, make
from turns import in_turns, ours

TREES = [(4, 2, 1), (8, 4, 2), (16, 5, 4), (26, 6, 6), (60, 7, 10)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shape", choices=NAMES, default="1.1b")
    arguments.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    arguments.add_argument("--quantize", default=None, help="int8, int4, ..., as for eagle_jax.load")
    arguments.add_argument("--auto", action="store_true", help="plain decoding and auto alone, without other trees")
    arguments.add_argument("--new-tokens", type=int, default=64)
    arguments.add_argument("--prompts", type=int, default=2)
    arguments.add_argument("--repeats", type=int, default=2)
    options = arguments.parse_args()
    pair = make(Shape.of(options.shape), PUBLISHED, quantize=options.quantize, dtype=options.dtype)
    asked = [pair.chart.prompt(40, seed) for seed in range(options.prompts)]
    methods = {"plain": ours(pair.model, options.new_tokens, "none")}
    methods |= {"EAGLE-3, auto": ours(pair.model, options.new_tokens, "eagle")}
    trees = [] if options.auto else TREES
    methods |= {f"EAGLE-3, {tree}": ours(pair.model, options.new_tokens, "eagle", tree) for tree in trees}
    timed = in_turns(methods, asked, options.repeats)
    plain = timed["plain"].speed("decoding")
    rows = []
    for name, one in timed.items():
        speed = one.speed("decoding")
        cycle, of_plain = 1e3 * one.length / speed, one.length * plain / speed
        same = "yes" if one.texts == timed["plain"].texts else "no"
        gained = f"{speed / plain:.2f}"
        rows.append((name, f"{speed:.1f}", f"{one.length:.2f}", f"{cycle:.0f} ms", f"{of_plain:.2f}", gained, same))
    columns = ("decoding alone", "tokens/s", "tokens a pass", "a cycle", "of plain", "against plain", "same text")
    print(table(columns, rows))


if __name__ == "__main__":
    begin(main)
