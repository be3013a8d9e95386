"""Update after update until the last one, saving on the way."""

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
from eagle_jax.training.checkpoint import Checkpoints, Saved
from eagle_jax.training.config import TrainConfig
from eagle_jax.training.data import Rows
from eagle_jax.training.events import Measured, Observe
from eagle_jax.training.feature_files import FeatureFiles
from eagle_jax.training.metrics import Metrics, numbers
from eagle_jax.training.order import Order
from eagle_jax.training.update import TrainState, accepted_length, evaluate, on_devices, update
from eagle_jax.training.watch import StartedUpdate, Watch

STOPPING = signal.SIGINT, signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What stays the same from update to update.

    Attributes:
        head: without its weights.
        sharding: the devices that all of this is spread over.
        features: what the target makes of `rows`, on disk; None lets it run in every update.
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

    def advance(self, state: TrainState, order: Order) -> tuple[TrainState, int | None]:
        """Updates until the last step, or until time is up or someone interrupts; the end is saved in any case.

        Returns:
            The state, and the signal that stopped the run before its last step, in whichever process it came.

        Raises:
            Diverged: the loss is no number any more; nothing was saved since it was one.
            OSError: a checkpoint could not be written.
        """
        watch = Watch(self.config, self.metrics, self.observe)
        step, deadline = int(state.step), self._deadline()
        with interruptions() as signals:
            while step < self.config.steps:
                state, step = self._update(state, step + 1, order, watch), step + 1
                up = bool(signals) or time.monotonic() >= deadline
                enough = step == self.config.steps or any_process(up)
                if enough or step % self.config.checkpoint.every == 0:
                    watch.finish()
                    self._save(state, order)
                    watch.pause()
                if enough:
                    break
        if step == self.config.steps:
            return state, None
        return state, next((number for number in STOPPING if any_process(number in signals)), None)

    def _update(self, state: TrainState, step: int, order: Order, watch: Watch) -> TrainState:
        rows = next(order)
        shape = (self.config.accumulate, self.config.batch, self.rows.tokens.shape[1])
        parts = [self.rows.tokens[rows].reshape(shape), self.rows.answer[rows].reshape(shape)]
        if self.features is not None:
            parts.append(self.features[rows].reshape(*shape, -1))
        text = (on_devices(part, self.sharding, axis=1) for part in parts)
        options: dict[str, Any] = {"rule": self.rule, "objective": self.config.objective, "remat": self.config.remat}
        state, outcome = update(state, self.head, self.target, *text, **options, sharding=self.sharding)
        watch.add(StartedUpdate(step, outcome, rows, int(self.rows.filled[rows].sum())))
        return state

    def _save(self, state: TrainState, order: Order) -> None:
        objective = dataclasses.replace(self.config.objective, steps=self.config.evaluation.depth, noise=0.0)
        options: dict[str, Any] = {"batch": self.config.batch, "objective": objective, "sharding": self.sharding}
        measured = evaluate(state.params, self.head, self.target, self.held_out, **options)
        length = accepted_length(np.asarray(measured[1].agreement))
        values = {**numbers(*measured), "accepted_length": length}
        step = int(state.step)
        self.metrics.write("held_out", step, values)
        self.checkpoints.save(Saved(state, order.position), length)
        self.observe(Measured(step, values["loss"], length, tuple(values["agreement"])))

    def _deadline(self) -> float:
        minutes = self.config.max_minutes
        return float("inf") if minutes is None else time.monotonic() + 60 * minutes


@contextlib.contextmanager
def interruptions() -> Iterator[list[int]]:
    """Collects the first Ctrl-C and SIGTERM, so that an update is never cut in two; a second one is as usual."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield signals
        return

    def ask(number: int, _: Any) -> None:
        signals.append(number)
        signal.signal(number, usual[number])

    usual: dict[int, Any] = {number: signal.getsignal(number) for number in STOPPING}
    for number in usual:
        signal.signal(number, ask)
    try:
        yield signals
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
