"""A comparison as a table for people and as JSON for programs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from rich import box
from rich.table import Table

import eagle_jax
from eagle_jax.evaluation import Comparison, Summary, summarize


def table(rows: Sequence[Summary]) -> Table:
    """One line per category, the overall line set apart."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("category")
    for heading in ("questions", "plain tok/s", "EAGLE tok/s", "speedup", "tok/pass", "same"):
        shown.add_column(heading, justify="right")
    for row in rows:
        if row is rows[-1]:
            shown.add_section()
        shown.add_row(
            row.category,
            str(row.questions),
            f"{row.plain_tokens_per_second:.1f}",
            f"{row.eagle_tokens_per_second:.1f}",
            f"{row.speedup:.2f}x",
            f"{row.mean_accepted_length:.2f}",
            f"{row.identical}/{row.answers}",
        )
    return shown


def shortfall(comparison: Comparison, max_new_tokens: int, context: int) -> list[str]:
    """Sentences about questions that were not asked in full; none when all were."""
    limit = f"with {max_new_tokens} new tokens they exceed the context of {context}"
    skipped, shortened = len(comparison.skipped), len(comparison.shortened)
    sentences = []
    if skipped:
        sentences.append(f"Skipped {skipped} question{'s' * (skipped > 1)}: {limit}.")
    if shortened:
        sentences.append(f"Cut {shortened} conversation{'s' * (shortened > 1)} short: {limit}.")
    return sentences


def differences(comparison: Comparison) -> list[str]:
    """Sentences about answers that plain decoding and EAGLE wrote differently; none when all are identical."""
    parted = [(record.question.id, record.divergence) for record in comparison.records if record.divergence]
    if not parted:
        return []
    (id_, (turn, token)), more = parted[0], len(parted) - 1
    also = f", and {more} more question{'s' * (more > 1)}" if more else ""
    return [
        f"Texts part in question {id_}, turn {turn + 1}, at token {token + 1}{also}. In bfloat16 rounding may decide "
        "between two tokens that are nearly tied; --dtype float32 leaves it next to nothing to decide."
    ]


def as_dict(comparison: Comparison, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that was measured, for `--json`: where, with what settings, per category, and every answer."""
    device = jax.devices()[0]
    return {
        "eagle_jax": eagle_jax.__version__,
        "jax": jax.__version__,
        "device": f"{device.platform}: {device.device_kind}",
        "settings": settings,
        "categories": [dataclasses.asdict(row) for row in summarize(comparison.records)],
        "skipped": list(comparison.skipped),
        "shortened": list(comparison.shortened),
        "questions": [{**dataclasses.asdict(record), "divergence": record.divergence} for record in comparison.records],
    }
