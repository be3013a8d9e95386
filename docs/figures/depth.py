r"""Draws acceptance against depth, a line for each file of answers that `eagle-jax eval` wrote, and prints the numbers.

    eagle-jax eval question.jsonl --methods eagle1:8,7,1,eagle3:8,7,1 --head eagle3 --max-new-tokens 96 --limit 80 \
        --dtype float32 --out runs/depth
    python docs/figures/depth.py EAGLE-1=runs/depth/eagle1_8_7_1.jsonl EAGLE-3=runs/depth/eagle3_8_7_1.jsonl

With a chain for a tree, n-alpha is how often the token at depth n is accepted where all before it were; `depth.svg`.
"""

import pathlib
import sys

from eagle_jax.evaluation import drawing, figures
from eagle_jax.evaluation.store import read_answers

PLACE = pathlib.Path(__file__).with_name("depth.svg")


def main() -> None:
    files = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if not files:
        raise SystemExit(__doc__)
    curves = {}
    for name, path in files.items():
        found = figures(read_answers(path).conversations, None)
        curves[name] = found.alpha
        shares = " ".join(f"{share:.3f}" for share in found.alpha)
        print(f"{name}: {found.mean_accepted_length:.2f} tokens a step in {found.steps} steps; n-alpha {shares}")
    svg = drawing.lines(curves, "Acceptance by depth, where all before was accepted", "depth", legend=True)
    PLACE.write_text(drawing.standalone(svg) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
