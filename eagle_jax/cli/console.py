"""Output shared by all commands: consoles, errors, spinners, streams and JSON."""

import contextlib
import functools
import json
import math
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_jax import api
from eagle_jax.api import without_nan
from eagle_jax.cli.signature import flat

# Answers and tables go to stdout; messages about them go to stderr, so that a pipe carries only the text.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])

TRACEBACK = "EAGLE_JAX_TRACEBACK"


def one_sentence(command: Command) -> Command:
    """Makes a function a command: a parameter that is a dataclass becomes one option for each of its fields.

    Errors that a user can cause (ValueError, TypeError, OSError, ImportError) become one sentence on stderr and exit
    code 2; with EAGLE_JAX_TRACEBACK=1 in the environment they keep their traceback.
    """
    signature, arguments = flat(command)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            command(**arguments(values))
        except BrokenPipeError:
            raise
        except (ValueError, TypeError, OSError, ImportError) as error:
            if os.environ.get(TRACEBACK):
                raise
            err.print(f"eagle-jax: {sentence(error)}", markup=False)
            raise typer.Exit(2) from None

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run  # type: ignore[return-value]  # callers see the signature of `command`


def sentence(error: Exception) -> str:
    """Returns an error's message on one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def writing(folder: str, what: str) -> Iterator[pathlib.Path]:
    """Yields the folder to write a model to, with a spinner for the block.

    SIGTERM raises SystemExit in the block, so that temporary files are removed.
    """
    if not folder:
        raise ValueError("DST is empty; name the folder to write to")
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with err.status(what):
            yield pathlib.Path(folder)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def took(what: str, since: float) -> float:
    """Prints the seconds since `since`, a `time.monotonic()`; returns the time now."""
    now = time.monotonic()
    err.print(f"{what} in {now - since:.1f} s.", style="dim", markup=False)
    return now


def waiting(chunks: Iterator[T], message: str) -> Iterator[T]:
    """Yields the items of an iterator, with a spinner until the first arrives (compiling can take a while)."""
    with err.status(message):
        first = next(chunks, None)
    if first is not None:
        yield first
        yield from chunks


def write(text: str) -> None:
    """Writes streamed text as it is, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


ENDS = {"stop": "by itself", "length": "by the length limit", "error": "where the model's logits became NaN"}


def stats_line(result: api.Result) -> str:
    """Summarizes an answer on one line: length, steps, latency and speed (without compiling), finish reason."""
    stats = result.stats
    parts = [_count(len(result.token_ids), "token")]
    if stats.steps:
        parts.append(f"{_count(stats.steps, 'step', 'steps')}, {stats.mean_accepted_length:.2f} tokens each")
    if math.isfinite(stats.first_token_seconds):
        parts.append(f"the first after {_duration(stats.first_token_seconds)}")
    if math.isfinite(stats.tokens_per_second):
        parts.append(f"{stats.tokens_per_second:.0f} tokens/s")
    parts.append(f"ended {ENDS.get(result.finish_reason, 'early')}")
    return "; ".join(parts)


def print_json(value: Any) -> None:
    """Prints one line of JSON. NaN (the speed of an answer of one token) becomes null."""
    write(json.dumps(without_nan(value), ensure_ascii=False, allow_nan=False) + "\n")


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def progress_bar(label: str) -> Progress:
    """Returns a progress bar on stderr with done/total and the time left; it is off in a pipe."""
    columns = TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextlib.contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar for the block; yields its update, `show(done, total)`."""
    with progress_bar(label) as bar:
        line = bar.add_task("", total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)
