"""What does drafting gain for a model of a published shape, with acceptance by construction, alone and in batches?

The pair is synthetic (`common/synthetic.py`). The shipped pair cannot answer this: its weights fit a CPU's cache, and a
usual model's come from memory.

    python -m benchmarks.decode.speedup
    python -m benchmarks.decode.speedup --shape 8b --batches 1 4 16 64 --trees auto
"""

from typing import Any

from benchmarks.common.chart import PUBLISHED
from benchmarks.common.command import begin, parser, tree
from benchmarks.common.synthetic import NAMES, Shape, make
from benchmarks.common.tables import show
from benchmarks.common.turns import in_turns, ours

TREES: list[Any] = ["auto", (4, 2, 1), (8, 4, 2), (16, 5, 4), (26, 6, 6), (60, 7, 10)]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--shape", choices=NAMES, default="1.1b", help="%(default)s")
    arguments.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="%(default)s")
    arguments.add_argument("--quantize", help="int8, int4, draft:int8, ..., as for eagle_jax.load")
    arguments.add_argument("--trees", nargs="+", type=tree, default=TREES, help="auto, or nodes,depth,top-k")
    arguments.add_argument("--batches", nargs="+", type=int, default=[1], help="requests decoded together (1)")
    arguments.add_argument("--prompt", type=int, default=40, help="tokens of each prompt (%(default)s)")
    arguments.add_argument("--prompts", type=int, default=2, help="batches of prompts (%(default)s)")
    arguments.add_argument("--new-tokens", type=int, default=64, help="%(default)s")
    arguments.add_argument("--repeats", type=int, default=2, help="%(default)s")
    options = arguments.parse_args()
    pair = make(Shape.of(options.shape), PUBLISHED, quantize=options.quantize, dtype=options.dtype)
    methods = {"plain": ours(pair.model, options.new_tokens, "none")}
    methods |= {f"EAGLE-3, {tree}": ours(pair.model, options.new_tokens, "eagle", tree) for tree in options.trees}
    rows: list[list[object]] = []
    for size in options.batches:
        prompts = [pair.chart.prompt(options.prompt, seed) for seed in range(options.prompts * size)]
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        timed = in_turns(methods, batches, options.repeats)
        known = [
            [token for prompt in batch for token in pair.chart.answer(prompt, options.new_tokens)] for batch in batches
        ]
        plain = timed["plain"]
        for name, one in timed.items():
            speed = one.speed("decoding")
            gain = speed / plain.speed("decoding")
            step = 1e3 * size * one.accepted / speed
            texts = one.texts == plain.texts, one.texts == known
            rows.append(
                [size, name, speed, one.accepted, step, one.accepted / gain, gain, one.speed() / plain.speed(), *texts]
            )
        columns = ["batch", "method", "tokens/s", "mean acceptance length", "ms a step", "in plain steps", "speedup"]
        columns += ["with prefill", "same text as plain", "text as constructed"]
        show(f"Shape {options.shape}, {options.dtype}, {options.quantize or 'float'}, decoding alone", columns, rows)


if __name__ == "__main__":
    begin(main)
