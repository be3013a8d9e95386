"""A run's figures as tables of text, for the terminal and the page."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from eagle_jax import api
from eagle_jax.evaluation.metrics import OVERALL, Figures
from eagle_jax.evaluation.results import Results

DEPTHS = 8
SPENT = ("nodes", "steps", "tokens", "tok/step", "seconds")
SHORT = {
    "mt_bench": "MT",
    "translation": "transl.",
    "summarization": "summ.",
    "qa": "QA",
    "math_reasoning": "math",
    "rag": "RAG",
    OVERALL: "all",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, an explanatory note, and rows of text whose first cell is a name."""

    title: str
    note: str
    header: list[str]
    rows: list[list[str]]


def tables(results: Results) -> list[Table]:
    """Returns all tables of a report, the overall one first."""
    return [
        _overall(results),
        _by_task(
            results,
            "Speedup by task",
            "Tokens per second relative to plain decoding; total tokens over total seconds, with prefill.",
            lambda row: _times(row.speedup),
        ),
        _by_task(
            results,
            "Tokens per step by task",
            "Mean accepted length: tokens that a step commits, its own included.",
            lambda row: number(row.mean_accepted_length),
        ),
        _specbench(results),
        *_depths(results),
        *_spent(results),
    ]


def number(value: float, form: str = ".2f") -> str:
    """Formats a figure; a dash for nan."""
    return f"{value:{form}}" if math.isfinite(value) else "-"


def shares(results: Results) -> dict[str, list[float]]:
    """Returns the share of the steps that committed 1, 2, ... tokens, by method."""
    overall = results.groups[OVERALL]
    return {name: [count / row.steps for count in row.lengths] for name, row in overall.items() if row.steps}


def _overall(results: Results) -> Table:
    header = ["method", "tree", "tok/s", "speedup", "decode", "speedup", "first", "tok/step", "same", "distinct"]
    rows = [
        [
            name,
            _shape(results, name),
            number(row.tokens_per_second, ".1f"),
            _times(row.speedup),
            number(row.decode_tokens_per_second, ".1f"),
            _times(row.decode_speedup),
            f"{number(row.seconds_to_first_token * 1000, '.0f')} ms",
            number(row.mean_accepted_length),
            f"{row.identical}/{row.answers}" if results.plain else "-",
            number(row.distinct_bigrams),
        ]
        for name, row in results.groups[OVERALL].items()
    ]
    first = next(iter(results.groups[OVERALL].values()))
    note = (
        f"{first.questions} questions, {first.answers} answers. tree: nodes x depth. Speeds are all tokens over all "
        "seconds; decode leaves the first token and its time out, first is that time. same: answers with the token ids "
        "of plain decoding. distinct: share of pairs of neighbouring tokens that are new in their answer."
    )
    return Table("All methods", note, header, rows)


def _by_task(results: Results, title: str, note: str, cell: Callable[[Figures], str]) -> Table:
    names = list(results.methods)
    rows = [[name, *(cell(methods[name]) for methods in results.groups.values())] for name in names]
    return Table(title, note, ["method", *(SHORT.get(group, group) for group in results.groups)], rows)


def _specbench(results: Results) -> Table:
    groups = [group for group in results.groups if group != OVERALL]
    overall = results.groups[OVERALL]
    baseline = next(iter(overall.values())).specbench.baseline_tokens_per_second
    rows = [
        [
            name,
            *(_times(results.groups[group][name].specbench.speedup) for group in groups),
            _times(overall[name].specbench.speedup),
            number(overall[name].specbench.tokens_per_second, ".1f"),
            number(overall[name].specbench.mean_accepted_tokens),
        ]
        for name in results.methods
    ]
    return Table(
        "As Spec-Bench computes it",
        "Speedups that compare with its leaderboard, its flaws included: means over questions, and a baseline whose "
        f"tokens are those of its text tokenized anew, less one: {number(baseline, '.1f')} tok/s.",
        ["method", *(SHORT.get(group, group) for group in (*groups, OVERALL)), "tok/s", "accepted"],
        rows,
    )


def _depths(results: Results) -> list[Table]:
    overall = results.groups[OVERALL]
    drafted = {name: row for name, row in overall.items() if row.accepted_by_depth}
    tables = []
    if drafted:
        note = (
            "Share of all steps that committed the drafted token at this depth; they sum to tokens per step less one."
        )
        values = {name: row.accepted_by_depth for name, row in drafted.items()}
        tables.append(_shares("Acceptance by depth", note, values))
    chains = {name: row.alpha for name, row in drafted.items() if results.is_chain(name) and row.alpha}
    if chains:
        note = (
            "n-alpha of the methods that draft chains: of the steps that committed depth n - 1, the share that "
            "committed depth n too; each answer's last step is left out."
        )
        tables.append(_shares("Acceptance at depth n, given all before", note, chains))
    return tables


def _spent(results: Results) -> list[Table]:
    rows = [[name, *spent_cells(use)] for name, figures in results.groups[OVERALL].items() for use in figures.spent]
    note = "Steps by the size of the trees that they verified: 1 node is plain decoding."
    return [Table("What steps were spent on", note, ["method", *SPENT], rows)] if rows else []


def spent_cells(spent: api.BudgetUse) -> list[str]:
    """Returns the cells of columns `SPENT`."""
    tokens_per_step = spent.tokens / spent.steps if spent.steps else math.nan
    return [f"{spent.nodes}", f"{spent.steps}", f"{spent.tokens}", number(tokens_per_step), f"{spent.seconds:.2f}"]


def _shares(title: str, note: str, values: dict[str, tuple[float, ...]]) -> Table:
    columns = min(max(map(len, values.values())), DEPTHS)
    rows = [[name, *(_share(row, depth) for depth in range(columns))] for name, row in values.items()]
    return Table(title, note, ["method", *(f"{depth + 1}" for depth in range(columns))], rows)


def _share(row: Sequence[float], depth: int) -> str:
    return f"{row[depth]:.0%}" if depth < len(row) else "-"


def _shape(results: Results, name: str) -> str:
    nodes, depth = results.methods[name]["nodes"], results.methods[name]["depth"]
    if nodes == 1:
        return "-"
    return f"chain {depth}" if results.is_chain(name) else f"{nodes} x {depth}"


def _times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else "-"
