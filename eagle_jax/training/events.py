"""Events that a run reports while it runs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from eagle_jax.training.prepare import DataReport


@dataclasses.dataclass(frozen=True)
class Reading:
    """Conversations are being read; `kept` have been kept so far."""

    kept: int


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All is ready.

    Attributes:
        report: what became of the files.
        rows, held_out: rows of text to learn from and to measure with.
        parameters: number of parameters of the head.
        coverage: share of the answers' tokens that the draft vocabulary holds; None where it is the whole one.
        step: updates that an earlier start has done.
    """

    report: DataReport
    rows: int
    held_out: int
    parameters: int
    coverage: float | None
    step: int


@dataclasses.dataclass(frozen=True)
class Storing:
    """Progress of writing the target's features to files; reported before the first one and after each.

    Attributes:
        folder: folder of the files.
        done, files: missing files that are written so far, and all of them.
        bytes: bytes of all files in the end.
        missing: bytes of the missing files.
        free: free bytes of the disk before.
    """

    folder: Path
    done: int
    files: int
    bytes: int
    missing: int
    free: int


@dataclasses.dataclass(frozen=True)
class Updated:
    """An update is done. The speed is that of the last line of metrics, None before there is one."""

    step: int
    loss: float
    agreement: tuple[float, ...]
    tokens_per_second: float | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """The head was measured on the held-out text, and a checkpoint of it is being written.

    Attributes:
        accepted_length: tokens a step that drafting one chain would give.
        agreement: by draft step, how often head and target have the same most likely token.
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
        best: the update after which it was the best.
        done: updates done; fewer than asked for if time was up or someone interrupted.
        interrupted: the signal that stopped it before its last update, if one did.
    """

    head: Path
    best: int
    done: int
    interrupted: int | None = None


Event = Reading | Prepared | Storing | Updated | Measured | Finished
Observe = Callable[[Event], None]
