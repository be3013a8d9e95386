"""Progress of a long job: a bar in a terminal, else a line every 30 seconds."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_jax import api
from eagle_jax.cli.console import err

LINE_SECONDS = 30.0  # between two lines


@contextlib.contextmanager
def meter(label: str) -> Iterator[Callable[[api.Tally], None]]:
    """Shows rows done, tokens per second and the time left; yields a function that takes a job's tally."""
    began = time.monotonic()
    if not err.is_terminal:
        yield _lines(began)
        return
    columns = TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}")
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=None, speed="")

        def show(tally: api.Tally) -> None:
            speed = f"{tally.tokens / (time.monotonic() - began):,.0f} tokens/s"
            bar.update(task, completed=tally.done, total=tally.rows, speed=speed)

        yield show


def _lines(began: float) -> Callable[[api.Tally], None]:
    last_shown = began

    def show(tally: api.Tally) -> None:
        nonlocal last_shown
        now = time.monotonic()
        if now - last_shown >= LINE_SECONDS or tally.done == tally.rows:
            last_shown = now
            err.print(line(tally, now - began), markup=False)

    return show


def line(tally: api.Tally, seconds: float) -> str:
    """Formats a tally: `1,204 of 5,000 rows, 3 failed, 812 tokens/s, 1:12:10 left`."""
    finished = tally.answered + tally.failed
    left = (tally.rows - tally.done) * seconds / finished if finished else 0.0
    parts = [f"{tally.done:,} of {tally.rows:,} rows"]
    parts += [f"{tally.failed:,} failed"] if tally.failed else []
    parts += [f"{tally.tokens / seconds:,.0f} tokens/s"] if seconds else []
    parts += [f"{datetime.timedelta(seconds=round(left))} left"] if left else []
    return ", ".join(parts)
