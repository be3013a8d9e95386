"""What do batches that stay full buy over fixed batches?

Prompts of mixed length, answers that end by themselves: through rows in which every finished answer makes room for the
next prompt, and in batches that wait for their slowest. The same requests in one run, in turns. Every text is held
against the one of its prompt alone; that, and that nothing is compiled after the first round, has to hold.
"""

import itertools
import time

from common import begin, parser, prompts, table

import eagle_jax
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.offline import Utilisation, run
from eagle_jax.scheduling.options import options_for
from eagle_jax.scheduling.request import requests_for
from eagle_jax.tuning.methods import drafter_for


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=256)
    arguments.add_argument("--rows", type=int, default=8)
    arguments.add_argument(
        "--prompts", type=int, default=500, help="go through the questions again until it is so many"
    )
    arguments.add_argument("--temperature", type=float, default=1.0)
    arguments.add_argument("--drafter", default="auto")
    arguments.add_argument(
        "--tree",
        type=int,
        nargs=3,
        metavar=("NODES", "DEPTH", "TOP_K"),
        help="default: auto, which drafts nothing on a CPU for eight rows in float32",
    )
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument(
        "--dtype", default="float32", help="of the weights; texts are compared, so one that is exact"
    )
    arguments.add_argument("--alone", type=int, default=None, help="ask only so many one by one; default: all")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype)
    questions = prompts(model, options.questions, options.limit, options.new_tokens)
    asked = list(itertools.islice(itertools.cycle(questions), options.prompts))
    seeds = list(range(len(asked)))
    drafter = drafter_for(model, options.drafter, tuple(options.tree or ()) or "auto", options.rows)
    request = dict(max_new_tokens=options.new_tokens, temperature=options.temperature, drafter=drafter)
    how = options_for(
        len(asked), max_new_tokens=options.new_tokens, temperature=options.temperature, top_k=0, top_p=1.0, min_p=0.0
    )
    utilisation = Utilisation()

    def full() -> list[eagle_jax.Result]:
        requests = requests_for(model, asked, how, seeds)
        events = run(model, requests, options.rows, lambda _: drafter, utilisation=utilisation)
        results = {event.request.index: event.result for event in events if event.result is not None}
        return [results[number] for number in range(len(requests))]

    def fixed() -> list[eagle_jax.Result]:
        results = []
        for first in range(0, len(asked), options.rows):
            here = slice(first, first + options.rows)
            results += eagle_jax.generate(model, asked[here], seed=seeds[here], batch_size=options.rows, **request)
        return results

    ways = {"full": full, "fixed": fixed}
    results = {name: ask() for name, ask in ways.items()}  # compiles
    texts = {name: [result.token_ids for result in given] for name, given in results.items()}
    compiled, seconds = programs.compiled(), {name: float("inf") for name in ways}
    for _ in range(options.rounds):
        for name, ask in ways.items():
            start = time.perf_counter()
            ask()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    more = programs.compiled() - compiled
    alone = [
        eagle_jax.generate(model, prompt, seed=seed, **request).token_ids
        for prompt, seed in itertools.islice(zip(asked, seeds, strict=True), options.alone)
    ]

    batches = [results["fixed"][first : first + options.rows] for first in range(0, len(asked), options.rows)]
    passes = sum(options.rows * max(result.stats.cycles for result in batch) for batch in batches)
    busy = {"full": utilisation.fraction, "fixed": sum(result.stats.cycles for result in results["fixed"]) / passes}
    tokens = sum(map(len, texts["full"]))
    rows = [
        (name, f"{tokens / spent:.0f}", f"{busy[name]:.1%}", f"{seconds['fixed'] / spent:.2f}x")
        for name, spent in seconds.items()
    ]
    print(table(("batches", "tokens/s", "rows busy", "of fixed"), rows), flush=True)

    assert texts["full"] == texts["fixed"] and texts["full"][: len(alone)] == alone, "texts differ"
    assert more == 0, f"{more} programs were compiled after the first round"
    lengths = sorted(map(len, asked))
    print(f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens through {options.rows} rows, ", end="")
    print(f"{tokens:,} tokens in all; ", end="")
    print(f"{len(alone)} of them alone: the same texts; nothing was compiled after the first round")


if __name__ == "__main__":
    begin(main)
