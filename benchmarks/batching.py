"""What do batches that stay full buy over fixed batches?

Prompts of mixed length, answers that end by themselves: through rows in which every finished answer makes room for the
next prompt, and in batches that wait for their slowest. The same requests in one run, in turns; the texts are
compared too.
"""

import time

from common import parser, prompts, table

import eagle_jax
from eagle_jax.api import programs


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=256)
    arguments.add_argument("--rows", type=int, default=8)
    arguments.add_argument("--copies", type=int, default=1, help="ask every question so often, each with its own seed")
    arguments.add_argument("--temperature", type=float, default=1.0)
    arguments.add_argument("--drafter", default="auto")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--alone", type=int, default=20, help="also ask so many one by one, and compare the texts")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head)
    asked = prompts(model, options.questions, options.limit, options.new_tokens) * options.copies
    seeds = list(range(len(asked)))
    request = dict(max_new_tokens=options.new_tokens, temperature=options.temperature, drafter=options.drafter)

    def full() -> list[eagle_jax.Result]:
        return eagle_jax.generate(model, asked, seed=seeds, batch_size=options.rows, **request)

    def fixed() -> list[eagle_jax.Result]:
        results = []
        for first in range(0, len(asked), options.rows):
            here = slice(first, first + options.rows)
            results += eagle_jax.generate(model, asked[here], seed=seeds[here], batch_size=options.rows, **request)
        return results

    ways = {"full": full, "fixed": fixed}
    texts = {name: [result.token_ids for result in ask()] for name, ask in ways.items()}  # compiles
    compiled, seconds = programs.compiled(), {name: float("inf") for name in ways}
    for _ in range(options.rounds):
        for name, ask in ways.items():
            start = time.perf_counter()
            ask()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    more = programs.compiled() - compiled
    one_by_one = [
        eagle_jax.generate(model, asked[i], seed=seeds[i], **request).token_ids
        for i in range(min(options.alone, len(asked)))
    ]

    tokens = sum(map(len, texts["full"]))
    rows = [(name, f"{tokens / spent:.0f}", f"{seconds['fixed'] / spent:.2f}x") for name, spent in seconds.items()]
    print(table(("batches", "tokens/s", "of fixed"), rows))
    print(f"{len(asked)} prompts, {tokens:,} tokens; the same texts: {texts['full'] == texts['fixed']}; ", end="")
    print(f"the first {len(one_by_one)} alone: {texts['full'][: len(one_by_one)] == one_by_one}; ", end="")
    print(f"programs compiled after the first round: {more}")


if __name__ == "__main__":
    main()
