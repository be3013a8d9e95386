"""What do batches that stay full gain over fixed batches?

Prompts of mixed length, answers that end by themselves: through `generate`, where the next prompt takes the place of
every finished answer, and in batches that wait for their slowest. The same requests in one run, in turns; their texts
have to agree.

    python -m benchmarks.serve.batching --questions QUESTIONS.jsonl
"""

import itertools
import time
from typing import Any

import eagle_jax
from benchmarks.common.command import begin, parser, prompts, tree
from benchmarks.common.tables import show


def main() -> None:
    arguments = parser(__doc__, new_tokens=256)
    arguments.add_argument("--rows", type=int, default=8, help="of a batch (%(default)s)")
    arguments.add_argument("--prompts", type=int, default=500, help="repeat the questions up to so many (%(default)s)")
    arguments.add_argument("--temperature", type=float, default=1.0, help="%(default)s")
    arguments.add_argument("--drafter", default="auto")
    arguments.add_argument("--tree", type=tree, default="auto", help="nodes,depth,top-k; auto drafts nothing here")
    arguments.add_argument("--rounds", type=int, default=2, help="%(default)s")
    arguments.add_argument("--dtype", default="float32", help="texts are compared, so one that is exact (%(default)s)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype)
    questions = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    asked = list(itertools.islice(itertools.cycle(questions), options.prompts))
    how: dict[str, Any] = dict(max_new_tokens=options.new_tokens, temperature=options.temperature)
    how |= dict(drafter=options.drafter, tree=options.tree, batch_size=options.rows)

    def generate(first: int, last: int) -> list[eagle_jax.Result]:
        return eagle_jax.generate(model, asked[first:last], seed=list(range(first, min(last, len(asked)))), **how)

    starts = range(0, len(asked), options.rows)
    ways = {
        "full": lambda: generate(0, len(asked)),
        "fixed": lambda: [result for first in starts for result in generate(first, first + options.rows)],
    }
    texts = {name: [result.token_ids for result in run()] for name, run in ways.items()}  # compiles
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)

    tokens = sum(map(len, texts["full"]))
    rows = [(name, tokens / spent, seconds["fixed"] / spent) for name, spent in seconds.items()]
    lengths = sorted(map(len, asked))
    title = f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens, {options.rows} rows, {tokens:,} new tokens"
    show(title, ("batches", "tokens/s", "of fixed"), rows)
    if texts["full"] != texts["fixed"]:
        raise ValueError("texts differ between full and fixed batches")


if __name__ == "__main__":
    begin(main)
