"""Events that a training run reports."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from eagle_jax.training.prepare import DataReport


@dataclasses.dataclass(frozen=True)
class Reading:
    """Conversations are being read; `kept` is the number kept so far."""

    kept: int


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The first update can start.

    Attributes:
        report: report on the data.
        rows, held_out: numbers of training and held-out rows.
        parameters: number of parameters of the head.
        coverage: share of the answers' tokens in the draft vocabulary; None without a draft vocabulary.
        step: number of updates done by earlier starts.
    """

    report: DataReport
    rows: int
    held_out: int
    parameters: int
    coverage: float | None
    step: int


@dataclasses.dataclass(frozen=True)
class Storing:
    """Progress of writing the target's features to files; reported before the first file and after each.

    Attributes:
        folder: folder of the files.
        done, files: number of files written so far, and number to write.
        bytes: total size of all files.
        missing: total size of the files to write.
        free: free disk space before.
    """

    folder: Path
    done: int
    files: int
    bytes: int
    missing: int
    free: int


@dataclasses.dataclass(frozen=True)
class Updated:
    """An update is done. The speed is that of the last line of metrics; None before the first."""

    step: int
    loss: float
    agreement: tuple[float, ...]
    tokens_per_second: float | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """The head was evaluated on held-out text, and its checkpoint is being written.

    Attributes:
        accepted_length: expected tokens per step with a chain.
        agreement: by draft step, share of positions where head and target have the same most likely token.
    """

    step: int
    loss: float
    accepted_length: float
    agreement: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Finished:
    """The run ended.

    Attributes:
        head: folder of the best head.
        best: number of updates of the best head.
        done: number of updates done; fewer than configured after the time limit or an interruption.
        interrupted: the signal that stopped the run early, if one did.
    """

    head: Path
    best: int
    done: int
    interrupted: int | None = None


Event = Reading | Prepared | Storing | Updated | Measured | Finished
Observe = Callable[[Event], None]
