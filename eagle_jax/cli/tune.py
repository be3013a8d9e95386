"""`eagle-jax tune`: measures which draft tree is fastest on this machine, for each batch size."""

import dataclasses
import pathlib
from typing import Annotated, Any

from rich.table import Table

from eagle_jax import api
from eagle_jax.api import numbers_of
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import counting, err, one_sentence, out, print_json
from eagle_jax.cli.report import new_table, operations_table, surroundings
from eagle_jax.evaluation import read_questions

NUM_SHOWN = 6  # trees of each batch size
NUM_TIMED, NUM_CALIBRATED = 8, 64  # questions of a file that trees are timed on, and that a head is calibrated on


@one_sentence
def tune(
    pair: options.PairArguments = options.PairArguments(),
    batch_sizes: Annotated[
        str, options.option("--batch-sizes N,N,...", "Numbers of answers decoded together.")
    ] = "1,4,8,16",
    prompts: Annotated[
        pathlib.Path | None,
        options.option(
            "--prompts FILE.jsonl", "Questions in Spec-Bench's format; by default a few that come with the package."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, options.option("--max-new-tokens -n", "Tokens of an answer that the caches have room for.")
    ] = 256,
    chat: options.Chat = None,
    drafter: options.Drafter = "auto",
    draft_model: options.DraftModel = None,
    calibrate: Annotated[
        bool,
        options.option(
            "--calibrate", "First measure how often the head's guesses are right, and save that in its folder."
        ),
    ] = False,
    ops: Annotated[
        bool, options.option("--ops", "Only measure which candidate computes each operation fastest.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Measure what draft trees cost on this machine, choose one for each batch size, and save the choice.

    `--tree auto`, the default of all commands, then drafts with the tree that was fastest at that batch size, or
    decodes plainly if no tree was faster. It takes about half a minute for each batch size, most of it compiling.
    Measure again after training another head or updating JAX, on an idle machine.

    **Examples**

    - `eagle-jax tune`

    - `eagle-jax tune ./llama ./eagle --batch-sizes 1,2,8,32 --prompts question.jsonl`

    - `eagle-jax tune ./llama ./eagle --calibrate --prompts question.jsonl`

    - `eagle-jax tune ./llama --ops`
    """
    if ops:
        tune_operations(pair, as_json)
        return
    sizes = parsing.parse_numbers(batch_sizes, "--batch-sizes")
    model = pair.load(draft=draft_model)
    prompts_to_time = None if prompts is None else questions(prompts, parsing.wants_chat(model, chat), NUM_TIMED)
    api.keep_budgets([])  # reports a folder that cannot be written before measuring
    if calibrate:
        to_calibrate = None if prompts is None else questions(prompts, parsing.wants_chat(model, chat), NUM_CALIBRATED)
        with counting("Calibrating") as progress:
            model = api.calibrate_head(model, pair.target, pair.head, to_calibrate, progress=progress)
    tuned = []
    with counting("Measuring") as progress:
        arguments: dict[str, Any] = dict(
            drafter=drafter, batch_sizes=sizes, prompts=prompts_to_time, max_new_tokens=max_new_tokens
        )
        for one in api.tune(model, **arguments, progress=progress):
            api.keep_budgets([one.budget])
            tuned.append(one)
            if not as_json:
                out.print(table(one))
    if as_json:
        print_json(surroundings() | {"tuned": [as_dict(one) for one in tuned]})
        return
    out.print(acceptance(tuned[0]))
    out.print(choices(tuned))
    err.print(f"Saved in {api.budgets_path()}, which --tree auto uses from now on.", style="dim", markup=False)


def tune_operations(pair: options.ModelOptions, as_json: bool) -> None:
    """Measures all candidates for a model's operations again; later loads use the fastest."""
    model = pair.load(head=None, head_config=None, mesh=None)
    with counting("Measuring") as progress:
        findings = api.measure_operations(model, anew=True, progress=lambda done, total, _: progress(done, total))
    if as_json:
        print_json(surroundings() | {"operations": [dataclasses.asdict(one) for one in findings]})
        return
    out.print(operations_table(findings))
    err.print("Saved; models loaded from now on use the fastest.", style="dim", markup=False)


def questions(path: pathlib.Path, chat: bool, limit: int) -> list[Any]:
    """Returns the first turns of a file's first questions."""
    turns = [question.turns[0] for question in read_questions(path, limit)]
    return [[{"role": "user", "content": turn}] for turn in turns] if chat else turns


def table(tuned: api.Tuned) -> Table:
    """Returns a table of expected and measured speeds: plain decoding, then the most promising trees."""
    rows = tuned.budget.rows
    title = f"{rows} answer{'s' * (rows > 1)} at a time, caches of {tuned.budget.slots} tokens"
    plain = next(one for one in tuned.estimates if one.tree is None)
    trees = [one for one in tuned.estimates if one.tree is not None][:NUM_SHOWN]
    shown = []
    for one in (plain, *trees):
        expected = f"{one.length:.2f}", f"{1e3 * one.seconds:.2f}", f"{tuned.promised(one):.0f}"
        shown.append((name(one.tree), *expected, *outcome(tuned, one.tree)))
    others = [tree for tree in tuned.measured if tree not in [one.tree for one in (plain, *trees)]]
    shown += [(name(tree), "", "", "", *outcome(tuned, tree)) for tree in others]
    return new_table(("tree", "tok/step", "ms a step", "expected tok/s", "measured tok/s", ""), shown, title)


def outcome(tuned: api.Tuned, tree: Any) -> tuple[str, str]:
    """Returns two cells: the measured speed of a tree, if it was timed, and whether it was chosen."""
    measured, chosen = tuned.measured.get(tree), name(tree) == name(tuned.budget.tree)
    return "" if measured is None else f"{measured:.0f}", "chosen" if chosen else ""


def acceptance(tuned: api.Tuned) -> Table:
    """Returns a table of how often each guess at a depth was right, given that its parent was."""
    guesses = (f"guess {rank}" for rank, _ in enumerate(tuned.by_rank[0], start=1))
    rows = [
        (str(depth), *(f"{100 * share:.0f} %" for share in shares)) for depth, shares in enumerate(tuned.by_rank, 1)
    ]
    return new_table(("depth", *guesses), rows, "How often the drafter's guesses are right")


def choices(tuned: list[api.Tuned]) -> Table:
    """Returns a table of the choice for each batch size."""
    budgets = [one.budget for one in tuned]
    rows = [(str(b.rows), name(b.tree), f"{b.speed:.0f}", f"{b.speed / b.plain:.2f}x") for b in budgets]
    return new_table(("answers at a time", "tree", "tok/s", "against plain"), rows)


def name(tree: Any) -> str:
    """Returns a tree as `--tree` takes it."""
    if tree is None:
        return "plain"
    numbers = tree if isinstance(tree, tuple) else numbers_of(tree)
    return ",".join(map(str, numbers or ()))


def as_dict(tuned: api.Tuned) -> dict[str, Any]:
    """Returns the results for `--json`, with trees by name."""
    return {
        "budget": dataclasses.asdict(tuned.budget),
        "costs": dataclasses.asdict(tuned.costs),
        "expected": {
            name(one.tree): {"length": one.length, "seconds": one.seconds, "tokens_per_second": tuned.promised(one)}
            for one in tuned.estimates
        },
        "measured": {name(tree): speed for tree, speed in tuned.measured.items()},
        "by_rank": tuned.by_rank,
    }
