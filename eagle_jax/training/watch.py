"""Looks at every update: is it a number, how fast, what to write down. One update is computed meanwhile."""

import dataclasses
import math
import time

import jax
import numpy as np

from eagle_jax.training.config import TrainConfig
from eagle_jax.training.events import Observe, Updated
from eagle_jax.training.metrics import Metrics, numbers
from eagle_jax.training.optimizer import rate_at
from eagle_jax.training.update import Outcome


class Diverged(ValueError):
    """The loss or its gradient is no number any more."""


@dataclasses.dataclass(frozen=True)
class StartedUpdate:
    """An update that has been started: its number, its outcome to be, its rows, and their tokens."""

    step: int
    outcome: Outcome
    rows: np.ndarray
    tokens: int


class Watch:
    """Updates go in as they are started; lines of metrics come out, each the mean of `log_every` updates."""

    def __init__(self, config: TrainConfig, metrics: Metrics, observe: Observe):
        self._config, self._metrics, self._observe = config, metrics, observe
        self._rate = rate_at(config.optimizer, config.steps)
        self._started: StartedUpdate | None = None
        self._outcomes: list[Outcome] = []
        self._tokens, self._since, self._speed = 0, math.nan, math.nan

    def add(self, update: StartedUpdate) -> None:
        """Takes note of a started update and looks at the one before."""
        before, self._started = self._started, update
        if before is not None:
            self._look(before)

    def finish(self) -> None:
        """Waits for the update that is being computed.

        Raises:
            Diverged: it, or the one before, gave no number.
        """
        last, self._started = self._started, None
        if last is not None:
            self._look(last)

    def pause(self) -> None:
        """Other work comes in between: the clock stops until the next update is done."""
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
        values = numbers(float(outcome.loss), outcome.report)
        speed = None if math.isnan(self._speed) else self._speed
        self._observe(Updated(update.step, values["loss"], tuple(values["agreement"]), speed))

    def _log(self, step: int) -> None:
        now = time.monotonic()  # the rate below waits for the update that is being computed
        if self._tokens:
            self._speed = self._tokens / (now - self._since)
        mean = jax.tree.map(lambda *parts: np.mean(np.stack(parts), axis=0), *self._outcomes)
        rate, norm = float(self._rate(np.int32(step - 1))), float(mean.gradient_norm)
        speed = None if math.isnan(self._speed) else round(self._speed, 1)
        self._metrics.write(
            "train",
            step,
            {**numbers(float(mean.loss), mean.report), "gradient_norm": norm, "rate": rate, "tokens_per_second": speed},
        )
        self._outcomes = []
        self._tokens, self._since = 0, now


def _check(update: StartedUpdate, outcome: Outcome) -> None:
    if not (math.isfinite(outcome.loss) and math.isfinite(outcome.gradient_norm)):
        raise Diverged(
            f"update {update.step} gave a loss of {float(outcome.loss):g} and a gradient of norm "
            f"{float(outcome.gradient_norm):g}, on rows {', '.join(map(str, update.rows[:8]))}"
        )
