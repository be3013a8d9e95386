"""Formats measurements: tables and sentences for people, JSON for programs."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

import eagle_jax
from eagle_jax import api
from eagle_jax.cli.console import out
from eagle_jax.evaluation import Conversation, Figures, Prompter, Question, divergence, tables, too_long

Talks = Mapping[str, Sequence[Conversation]]


def bench_table(groups: Mapping[str, Mapping[str, Figures]]) -> Table:
    """Returns a table of plain decoding and EAGLE: a row for each category, and the overall row."""
    headings = ("category", "questions", "plain tok/s", "EAGLE tok/s", "speedup", "first", "tok/step", "same")
    rows = []
    for group, methods in groups.items():
        plain, eagle = methods["plain"], methods["eagle"]
        speeds = f"{plain.tokens_per_second:.1f}", f"{eagle.tokens_per_second:.1f}", f"{eagle.speedup:.2f}x"
        first = f"{tables.number(eagle.seconds_to_first_token * 1000, '.0f')} ms"
        length, same = tables.number(eagle.mean_accepted_length), f"{eagle.identical}/{eagle.answers}"
        rows.append((group, str(eagle.questions), *speeds, first, length, same))
    return new_table(headings, rows, overall=True)


def spent_table(spent: Mapping[str, Sequence[api.BudgetUse]]) -> Table:
    """Returns a table of steps by the size of their trees; 1 node is plain decoding."""
    rows = [(name, *tables.spent_cells(one)) for name, parts in spent.items() for one in parts]
    return new_table(("method", *tables.SPENT), rows)


def operations_table(findings: Sequence[api.Finding]) -> Table:
    """Returns a table of candidates; their times are for increasing numbers of rows."""
    devices = ", ".join(dict.fromkeys(one.device for one in findings))
    chosen = api.fastest(findings)
    rows = []
    for one in findings:
        times = "" if one.seconds is None else " ".join(f"{1e6 * seconds:.3g}" for seconds in one.seconds)
        error = "" if one.error is None else f"{one.error:.1e}"
        verdict = "taken" if chosen.get((one.operation, one.shape)) == one.candidate else one.reason
        rows.append((one.operation, one.shape, one.candidate, times, error, verdict))
    headings = ("operation", "shape", "candidate", "us a call", "error", "")
    return new_table(headings, rows, devices or "Nothing measured")


def new_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, overall: bool = False
) -> Table:
    """Returns a table of a column of names and columns of numbers; `overall` separates the last row."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    if overall and table.rows[:-1]:
        table.rows[-2].end_section = True
    return table


def facts_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Returns a table of names in bold and their values, without headings."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def rich_table(table: tables.Table) -> Table:
    """Returns a table of a run for the terminal."""
    shown = new_table(table.header, table.rows, table.title)
    # as wide as it needs, so that a pipe or a narrow terminal gets whole names and figures
    shown.width = Measurement.get(out, out.options.update(width=1000), shown).maximum
    return shown


def skipped_of(prompter: Prompter, questions: Sequence[Question]) -> list[int | str]:
    """Returns the ids of the questions that are too long. Raises ValueError if all are."""
    skipped = too_long(prompter, questions)
    if len(skipped) < len(questions):
        return skipped
    raise ValueError(
        f"none of the {len(questions)} questions fits: prompt and {prompter.max_new_tokens} new tokens must stay "
        f"within the context of {prompter.model.context} tokens; lower --max-new-tokens or take another file"
    )


def differences(conversations: Talks, plain: str) -> list[str]:
    """Returns a sentence for each method whose answers differ from plain decoding's."""
    base = {conversation.id: conversation for conversation in conversations[plain]}
    sentences = []
    for name in (name for name in conversations if name != plain):
        pairs = [(base[one.id], one) for one in conversations[name] if one.id in base]
        differing = [(one.id, place) for first, one in pairs if (place := divergence(first, one))]
        if differing:
            (id_, (turn, token)), more = differing[0], len(differing) - 1
            also = f", and {more} more question{'s' * (more > 1)}" if more else ""
            sentences.append(
                f"Texts of {plain} and {name} diverge in question {id_}, turn {turn + 1}, at token {token + 1}{also}. "
                "In bfloat16 rounding may decide between two tokens that are nearly tied; --dtype float32 makes that "
                "very rare."
            )
    return sentences


def surroundings() -> dict[str, Any]:
    """Returns the device and the versions, for reports."""
    device = jax.devices()[0]
    return {
        "eagle_jax": eagle_jax.__version__,
        "jax": jax.__version__,
        "device": f"{device.platform}: {device.device_kind}",
    }


def as_dict(groups: Mapping[str, Mapping[str, Figures]]) -> list[dict[str, Any]]:
    """Returns the figures for `--json`: a list of groups, each with its methods."""
    return [
        {"category": group, "methods": {name: dataclasses.asdict(row) for name, row in methods.items()}}
        for group, methods in groups.items()
    ]
