"""The table of candidates for operations: what was found about each on this machine."""

from collections.abc import Sequence

from rich.table import Table

from eagle_jax import api
from eagle_jax.cli.report import new_table


def operations(findings: Sequence[api.Finding]) -> Table:
    """Returns a table of the findings on each candidate; times are listed by number of rows, the fewest first."""
    devices = ", ".join(dict.fromkeys(one.device for one in findings))
    taken = api.fastest(findings)
    rows = []
    for one in findings:
        times = "" if one.seconds is None else " ".join(f"{1e6 * seconds:.3g}" for seconds in one.seconds)
        error = "" if one.error is None else f"{one.error:.1e}"
        verdict = "taken" if taken.get((one.operation, one.shape)) == one.candidate else one.reason
        rows.append((one.operation, one.shape, one.candidate, times, error, verdict))
    headings = ("operation", "shape", "candidate", "us a call", "error", "")
    return new_table(headings, rows, devices or "Nothing measured")
