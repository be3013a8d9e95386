"""The training loop: updates, evaluation and checkpoints."""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax

from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import Sharding, any_process
from eagle_jax.training.checkpoint import CheckpointData, Checkpoints
from eagle_jax.training.config import TrainConfig
from eagle_jax.training.data import Rows
from eagle_jax.training.events import Measured, Observe
from eagle_jax.training.feature_files import FeatureFiles
from eagle_jax.training.metrics import Metrics, report_values
from eagle_jax.training.order import RowOrder
from eagle_jax.training.update import TrainState, accepted_length, evaluate, on_devices, update
from eagle_jax.training.update_monitor import StartedUpdate, UpdateMonitor

STOPPING = signal.SIGINT, signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The constant parts of a run.

    Attributes:
        head: the head without its weights.
        sharding: the sharding of target, head and rows; None for one device.
        features: the target's features of `rows` on disk; None to compute them in every update.
    """

    config: TrainConfig
    rule: optax.GradientTransformation
    target: LM
    head: AnyHead
    rows: Rows
    held_out: Rows
    checkpoints: Checkpoints
    metrics: Metrics
    observe: Observe
    sharding: Sharding | None = None
    features: FeatureFiles | None = None

    def advance(self, state: TrainState, order: RowOrder) -> tuple[TrainState, int | None]:
        """Updates until the last step, the time limit or an interruption, and saves the final state.

        Returns:
            The state, and the signal that stopped the run early in any of the processes.

        Raises:
            Diverged: the loss is not finite; no checkpoint was saved since.
            OSError: a checkpoint could not be written.
        """
        monitor = UpdateMonitor(self.config, self.metrics, self.observe)
        step, deadline = int(state.step), self._deadline()
        with interruptions() as signals:
            while step < self.config.steps:
                state, step = self._update(state, step + 1, order, monitor), step + 1
                stop = bool(signals) or time.monotonic() >= deadline
                is_done = step == self.config.steps or any_process(stop)
                if is_done or step % self.config.checkpoint.every == 0:
                    monitor.finish()
                    self._save(state, order)
                    monitor.pause()
                if is_done:
                    break
        if step == self.config.steps:
            return state, None
        return state, next((number for number in STOPPING if any_process(number in signals)), None)

    def _update(self, state: TrainState, step: int, order: RowOrder, monitor: UpdateMonitor) -> TrainState:
        rows = next(order)
        shape = (self.config.accumulate, self.config.batch, self.rows.tokens.shape[1])
        parts = [self.rows.tokens[rows].reshape(shape), self.rows.answer[rows].reshape(shape)]
        if self.features is not None:
            parts.append(self.features[rows].reshape(*shape, -1))
        text = (on_devices(part, self.sharding, axis=1) for part in parts)
        options: dict[str, Any] = {"rule": self.rule, "objective": self.config.objective, "remat": self.config.remat}
        state, outcome = update(state, self.head, self.target, *text, **options, sharding=self.sharding)
        monitor.add(StartedUpdate(step, outcome, rows, int(self.rows.filled[rows].sum())))
        return state

    def _save(self, state: TrainState, order: RowOrder) -> None:
        objective = dataclasses.replace(self.config.objective, steps=self.config.evaluation.depth, noise=0.0)
        options: dict[str, Any] = {"batch": self.config.batch, "objective": objective, "sharding": self.sharding}
        measured = evaluate(state.params, self.head, self.target, self.held_out, **options)
        length = accepted_length(np.asarray(measured[1].agreement))
        values = {**report_values(*measured), "accepted_length": length}
        step = int(state.step)
        self.metrics.write("held_out", step, values)
        self.checkpoints.save(CheckpointData(state, order.position), length)
        self.observe(Measured(step, values["loss"], length, tuple(values["agreement"])))

    def _deadline(self) -> float:
        minutes = self.config.max_minutes
        return float("inf") if minutes is None else time.monotonic() + 60 * minutes


@contextlib.contextmanager
def interruptions() -> Iterator[list[int]]:
    """Collects the first SIGINT and SIGTERM, so that no update is interrupted; a second one has its usual effect."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield signals
        return

    def stop_later(number: int, _: Any) -> None:
        signals.append(number)
        signal.signal(number, previous[number])

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in STOPPING}
    for number in previous:
        signal.signal(number, stop_later)
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
