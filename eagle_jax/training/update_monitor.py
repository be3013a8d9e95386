"""Monitors updates: divergence, speed and metrics, always one update behind, so that the device stays busy."""

import dataclasses
import math
import time

import jax
import numpy as np

from eagle_jax.training.config import TrainConfig
from eagle_jax.training.events import Observe, Updated
from eagle_jax.training.metrics import Metrics, report_values
from eagle_jax.training.optimizer import rate_at
from eagle_jax.training.update import UpdateMetrics


class Diverged(ValueError):
    """The loss or its gradient is not finite."""


@dataclasses.dataclass(frozen=True)
class StartedUpdate:
    """A started update: its number, metrics (being computed), rows, and number of tokens."""

    step: int
    outcome: UpdateMetrics
    rows: np.ndarray
    tokens: int


class UpdateMonitor:
    """Takes started updates; checks each and writes the mean metrics of every `log_every` updates."""

    def __init__(self, config: TrainConfig, metrics: Metrics, observe: Observe):
        self._config, self._metrics, self._observe = config, metrics, observe
        self._rate = rate_at(config.optimizer, config.steps)
        self._started: StartedUpdate | None = None
        self._outcomes: list[UpdateMetrics] = []
        self._tokens, self._since, self._speed = 0, math.nan, math.nan

    def add(self, update: StartedUpdate) -> None:
        """Adds a started update and checks the previous one."""
        before, self._started = self._started, update
        if before is not None:
            self._look(before)

    def finish(self) -> None:
        """Waits for the last update and checks it. Raises Diverged if its loss is not finite."""
        last, self._started = self._started, None
        if last is not None:
            self._look(last)

    def pause(self) -> None:
        """Stops the clock until the next update is done."""
        self._tokens, self._since = 0, math.nan

    def _look(self, update: StartedUpdate) -> None:
        outcome = jax.device_get(update.outcome)
        _check(update, outcome)
        self._outcomes.append(outcome)
        if math.isnan(self._since):  # the first update compiles
            self._since = time.monotonic()
        else:
            self._tokens += update.tokens
        if update.step % self._config.log_every == 0:
            self._log(update.step)
        values = report_values(float(outcome.loss), outcome.report)
        speed = None if math.isnan(self._speed) else self._speed
        self._observe(Updated(update.step, values["loss"], tuple(values["agreement"]), speed))

    def _log(self, step: int) -> None:
        now = time.monotonic()  # before `self._rate`, which waits for the running update
        if self._tokens:
            self._speed = self._tokens / (now - self._since)
        mean = jax.tree.map(lambda *parts: np.mean(np.stack(parts), axis=0), *self._outcomes)
        rate, norm = float(self._rate(np.int32(step - 1))), float(mean.gradient_norm)
        speed = None if math.isnan(self._speed) else round(self._speed, 1)
        self._metrics.write(
            "train",
            step,
            {
                **report_values(float(mean.loss), mean.report),
                "gradient_norm": norm,
                "rate": rate,
                "tokens_per_second": speed,
            },
        )
        self._outcomes = []
        self._tokens, self._since = 0, now


def _check(update: StartedUpdate, outcome: UpdateMetrics) -> None:
    if not (math.isfinite(outcome.loss) and math.isfinite(outcome.gradient_norm)):
        raise Diverged(
            f"update {update.step} gave a loss of {float(outcome.loss):g} and a gradient of norm "
            f"{float(outcome.gradient_norm):g}, on rows {', '.join(map(str, update.rows[:8]))}"
        )
