"""What is the mean acceptance length: greedy, sampled with the noise shared by drafter and target, and without?

At temperature > 0 the target draws with noise that depends on (seed, position). The drafter may rank its guesses with
the same noise (coupled) or by probability alone (uncoupled); the text is the same, the number of steps is not.

    python -m benchmarks.decode.acceptance --questions QUESTIONS.jsonl
"""

from collections.abc import Sequence

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts_of_tasks
from benchmarks.common.tables import progress, show
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.eagle import Eagle


def main() -> None:
    arguments = parser(__doc__, new_tokens=256)
    arguments.add_argument("--tree", type=numbers, default=(60, 7, 10), help="nodes,depth,top-k (60,7,10)")
    arguments.add_argument("--temperatures", type=float, nargs="+", default=[1.0], help="besides greedy (1)")
    arguments.add_argument("--top-p", type=float, default=1.0)
    arguments.add_argument("--dtype", help="as for `load`")
    arguments.add_argument("--quantize", help="as for `load`, such as none")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype, quantize=options.quantize)
    of_tasks = prompts_of_tasks(model, options.questions, options.limit, options.new_tokens, options.every)
    tasks, asked = [task for task, _ in of_tasks], [prompt for _, prompt in of_tasks]
    cases = [("greedy", 0.0, True)]
    for temperature in options.temperatures:
        cases += [(f"T={temperature:g}, {name}", temperature, name == "coupled") for name in ("coupled", "uncoupled")]

    rows: list[tuple[object, ...]] = []
    by_task: list[tuple[object, ...]] = []
    names = sorted(set(tasks))
    greedy = 0.0
    for name, temperature, coupled in cases:
        results = eagle_jax.generate(
            model,
            asked,
            max_new_tokens=options.new_tokens,
            temperature=temperature,
            top_p=options.top_p,
            seed=list(range(len(asked))),
            drafter=Eagle(model.head, DynamicTree(*options.tree), coupled),
            progress=progress,
        )
        reached = reached_depths(results)
        length = mean_length(results)
        greedy = greedy or length
        rows.append((name, length, f"{length / greedy:.0%}", " ".join(f"{share:.2f}" for share in reached)))
        groups = ([one for one, its in zip(results, tasks, strict=True) if its == task] for task in names)
        by_task.append((name, *map(mean_length, groups)))
    columns = ("sampling", "mean acceptance length", "of greedy", "share of steps that reach depth 1, 2, ...")
    show(f"{len(asked)} questions, tree {options.tree}", columns, rows)
    show("Mean acceptance length by task", ("sampling", *names), by_task)


def mean_length(results: Sequence[eagle_jax.Result]) -> float:
    """Tokens that a step commits, over all steps; NaN where a single token was asked for."""
    stats = [result.stats for result in results if result.stats.steps]
    steps = sum(one.steps for one in stats)
    return sum(sum(one.accepted_lengths) for one in stats) / steps if steps else float("nan")


def reached_depths(results: Sequence[eagle_jax.Result]) -> list[float]:
    """The share of all steps that reach depth 1, 2, ..."""
    stats = [result.stats for result in results if result.stats.steps]
    depths = zip(*([share * one.steps for share in one.accepted_by_depth] for one in stats), strict=True)
    return [sum(depth) / sum(one.steps for one in stats) for depth in depths]


if __name__ == "__main__":
    begin(main)
