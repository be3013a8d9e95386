"""Are the token ids of every draft tree those of plain decoding, greedy and sampled, alone and in ragged batches?

Decodes every question plainly, one at a time; then plainly in batches, and with EAGLE-1's tree, EAGLE-2's, and a chain
that ends where the head is unsure, alone and in batches, and counts the answers that are the same, token for token.
Exits with 1 if one differs. In float32 all should be the same; on a single CPU in bfloat16 and with quantized weights
too, if the target has no experts.

    python -m benchmarks.decode.same_text --questions QUESTIONS.jsonl
"""

import sys
import time

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.decode.acceptance import mean_length

METHODS = {
    "plain": ("none", "auto"),
    "EAGLE-1 tree": ("eagle", "eagle1"),
    "EAGLE-2 tree": ("eagle", (60, 7, 10)),
    "chain while sure": ("eagle", (6, 0.8)),
}


def main() -> int:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 4], help="batch sizes (1 4)")
    arguments.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="0 1")
    arguments.add_argument("--dtype", default="float32", help="%(default)s")
    arguments.add_argument("--quantize", help="int8, int4, ..., as for eagle_jax.load")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype, quantize=options.quantize)
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    seeds = list(range(len(asked)))

    rows, different = [], 0
    for temperature in options.temperatures:
        expected: list[eagle_jax.Result] = []
        for name, (drafter, tree) in METHODS.items():
            for batch in options.batches:
                start = time.perf_counter()
                how = dict(max_new_tokens=options.new_tokens, temperature=temperature, seed=seeds, batch_size=batch)
                results = eagle_jax.generate(model, asked, drafter=drafter, tree=tree, **how)
                expected = expected or results
                same = sum(a.token_ids == b.token_ids for a, b in zip(results, expected, strict=True))
                different += len(asked) - same
                rows.append((f"T={temperature:g}", name, batch, f"{same} of {len(asked)}", mean_length(results)))
                print(*rows[-1], f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    columns = ("sampling", "method", "batch", "same token ids", "mean acceptance length")
    show(f"{options.dtype}{f', {options.quantize}' if options.quantize else ''}", columns, rows)
    return 1 if different else 0


if __name__ == "__main__":
    begin(main)
