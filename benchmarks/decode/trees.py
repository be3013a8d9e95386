"""Which tree is fastest for one request on this machine, greedily and at temperature 1, the trees in turns?

    python -m benchmarks.decode.trees --target smollm2-135m-instruct --questions QUESTIONS.jsonl --every 60

Speeds are of decoding alone, each question by its fastest repeat. A probability at the end of a tree, as in 8,3,2,0.03,
leaves out less probable paths. Exits with 1 if a text differs from that of plain decoding.
"""

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.common.turns import in_turns, ours
from eagle_jax.cli.parsing import parse_tree

TREES = ("4,2,1", "6,2,2", "6,0.15", "4,2,2,0.1", "8,3,2,0.03")


def main() -> int:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--dtype", help="as for `load`")
    arguments.add_argument("--quantize", help="as for `load`")
    arguments.add_argument("--trees", nargs="+", default=TREES, help=f"({' '.join(TREES)})")
    arguments.add_argument("--temperatures", nargs="+", type=float, default=(0.0, 1.0), help="(0 1)")
    arguments.add_argument("--repeats", type=int, default=3, help="%(default)s")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype, quantize=options.quantize)
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    rows: list[list[object]] = []
    for temperature in options.temperatures:
        drafters = {"plain": ("none", "auto")} | {tree: ("eagle", parse_tree(tree)) for tree in options.trees}
        methods = {
            name: ours(model, options.new_tokens, *drafter, temperature=temperature)
            for name, drafter in drafters.items()
        }
        timed = in_turns(methods, asked, options.repeats)
        plain = timed["plain"]
        for name, one in timed.items():
            speed = one.speed("decoding")
            same = one.texts == plain.texts
            rows.append([temperature, name, one.accepted, speed, speed / plain.speed("decoding"), same])
    columns = ["temperature", "tree", "mean acceptance length", "tokens/s", "speedup", "same text as plain"]
    show(
        f"{len(asked)} questions, {options.dtype or 'dtype by default'}, {options.quantize or 'as stored'}",
        columns,
        rows,
    )
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    begin(main)
