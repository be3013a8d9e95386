"""Checkpoints of a run: the latest few and the best, written atomically in the background."""

import contextlib
import dataclasses
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from eagle_jax.training.order import is_position
from eagle_jax.training.settings import CheckpointConfig
from eagle_jax.training.update import TrainState

BEST = "accepted_length"


@dataclasses.dataclass(frozen=True)
class CheckpointData:
    """Content of a checkpoint: the state, and the position in the data with the identity of the text."""

    state: TrainState
    position: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder. A step's folder gets its name when it is complete.

    Raises:
        ValueError: a checkpoint has no valid metrics.
        OSError: the folder cannot be written, or the disk is full.
    """

    def __init__(self, folder: Path, config: CheckpointConfig):
        import orbax.checkpoint as ocp
        from orbax.checkpoint import checkpoint_managers as managers

        _check_metrics(folder)
        # Orbax logs every step of every save, and every error in addition to raising it.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._hooks = threading.excepthook, sys.unraisablehook
        self._asyncio = logging.getLogger("asyncio")
        self._asyncio_level = self._asyncio.level
        threading.excepthook, sys.unraisablehook = self._on_thread_error, self._on_unraisable
        best = managers.BestN(get_metric_fn=_metric, n=1, keep_checkpoints_without_metrics=False)
        policy = managers.AnyPreservationPolicy([managers.LatestN(config.keep), best])
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, best_fn=_metric)
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def latest(self) -> int | None:
        """The newest complete step."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """The step with the longest accepted length on the held-out text."""
        return self._manager.best_step()

    def save(self, saved: CheckpointData, accepted_length: float) -> None:
        """Starts writing; the arrays are copied first, so the run may continue."""
        import orbax.checkpoint as ocp

        content = ocp.args.Composite(
            state=ocp.args.StandardSave(_to_dict(saved.state)), position=ocp.args.JsonSave(saved.position)
        )
        with _writing(self.folder):
            self._manager.save(int(saved.state.step), args=content, metrics={BEST: accepted_length})

    def restore(self, step: int, like: TrainState) -> CheckpointData:
        """Reads a step.

        Args:
            like: a state with the same shapes.

        Raises:
            ValueError: the checkpoint is damaged or has other shapes.
        """
        import orbax.checkpoint as ocp

        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _to_dict(like))
        content = ocp.args.Composite(state=ocp.args.StandardRestore(shapes), position=ocp.args.JsonRestore())
        try:
            read = self._manager.restore(step, args=content)
        except (MemoryError, PermissionError, jax.errors.JaxRuntimeError):  # not damage
            raise
        except Exception as error:  # orbax wraps errors of tensorstore in a bare Exception with a long message
            self._asyncio.setLevel(logging.CRITICAL)  # the other reads fail too, with a page of log each
            raise _damage_error(self.folder / str(step), error.__cause__ or error) from error
        if not is_position(read["position"]):
            raise _damage_error(self.folder / str(step), "its position in the data is invalid")
        return CheckpointData(state=TrainState(**read["state"]), position=read["position"])

    def finish(self) -> None:
        """Waits until everything is on disk."""
        with _writing(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for running writes and closes the folder; errors were raised before."""
        try:
            self._manager.close()
        except Exception as error:
            logging.getLogger(__name__).debug("closing %s: %s", self.folder, error)
        finally:
            threading.excepthook, sys.unraisablehook = self._hooks
            self._asyncio.setLevel(self._asyncio_level)

    def _on_thread_error(self, error: Any) -> None:
        if not type(error.thread).__module__.startswith("orbax"):
            self._hooks[0](error)

    def _on_unraisable(self, error: Any) -> None:
        code = getattr(error.object, "cr_code", None)
        of_orbax = code is not None and "orbax" in code.co_filename  # other reads and writes after one failed
        if not of_orbax and str(error.exc_value) != "Event loop is closed":
            self._hooks[1](error)


def _check_metrics(folder: Path) -> None:
    """Raises ValueError for invalid metrics; orbax would not name the file."""
    for path in sorted(folder.glob("*/metrics/metrics")):
        step = path.parents[1]
        if not step.name.isdecimal():  # left incomplete by a crash
            continue
        try:
            measured = json.loads(path.read_bytes())
        except ValueError as error:
            raise _damage_error(step, f"its metrics: {error}") from None
        if not isinstance(measured, dict) or not isinstance(measured.get(BEST), float):
            raise _damage_error(step, f"its metrics have no {BEST}")


def _damage_error(step: Path, reason: object) -> ValueError:
    sentence = " ".join(str(reason).split())[:200]
    return ValueError(f"{step} is damaged ({sentence}); remove that folder to continue from the one before")


def _metric(metrics: dict[str, float]) -> float:
    return metrics[BEST]


def _to_dict(state: TrainState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Converts errors of the storage layers to an OSError with one sentence."""
    try:
        yield
    except Exception as error:  # tensorstore and orbax have their own exception types
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the other writes fail too, with a page of log each
        raise OSError(f"the checkpoint could not be written to {folder}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns the operating system's message, which tensorstore puts last and Python into `strerror`."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r" \[.*?\]$", "", " ".join(str(error).split())).rpartition(": ")[2]
