"""The metrics of a run, in `metrics.jsonl` and optionally for TensorBoard."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from eagle_jax.durable import atomic_write
from eagle_jax.training.loss_parts import LossReport


class Metrics:
    """Appends records; first removes records after the step from which a run continues.

    Args:
        folder: folder of the run; None writes nothing, for all processes but the first.
        after: the step from which the run continues; 0 for a new run.
        tensorboard: whether to write event files too.

    Raises:
        ImportError: TensorBoard is not installed but requested.
    """

    def __init__(self, folder: Path | None, after: int, tensorboard: bool):
        self._file = self._board = None
        if folder is None:
            return
        self._board = _board(folder / "tensorboard", after) if tensorboard else None
        path = folder / "metrics.jsonl"
        earlier = _lines(path, after)
        with atomic_write(path) as file:
            file.writelines(earlier)
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Writes one record; `kind` is "train" or "held_out"."""
        if self._file is None:
            return
        self._file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self._file.flush()
        if self._board is None:
            return
        for name, value in values.items():
            for label, number in _scalars(f"{kind}/{name}", value):
                self._board.add_scalar(label, number, step)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def report_values(loss: float, report: LossReport) -> dict[str, Any]:
    """Returns the loss and its parts by draft step, as JSON values."""
    parts = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    values = {name: np.asarray(part).tolist() for name, part in parts.items() if part is not None}
    return {"loss": loss, **{name: [round(value, 5) for value in part] for name, part in values.items()}}


def _lines(path: Path, after: int) -> list[bytes]:
    """Returns the records up to a step, without damaged lines, which a crash may leave."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n") and (step := _step(line)) is not None and step <= after]


def _step(line: bytes) -> int | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) else None


def _scalars(name: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, list):
        return [(f"{name}/{i}", number) for i, number in enumerate(value, start=1)]
    return [] if value is None else [(name, value)]


def _board(folder: Path, after: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ImportError("tensorboard: true needs the extra: pip install 'eagle-jax[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=after + 1)
