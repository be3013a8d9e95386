"""Trains a head against a frozen target within a budget of wall-clock time."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.training import optimizer
from eagle_jax.training.data import Rows
from eagle_jax.training.loss import Objective, Report, loss


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training stands, for a caller that prints, saves or stops.

    Attributes:
        seconds: since the start.
        updates: done so far.
        epoch: counted from 0.
        report: parts of the loss, of the last update's batch.
    """

    seconds: float
    updates: int
    epoch: int
    report: Report


def train(
    head: DraftHead,
    target: LM,
    rows: Rows,
    features: Float[np.ndarray, "r n f"],
    objective: Objective,
    *,
    minutes: float,
    batch: int,
    rate: float,
    seed: int = 0,
    observe: Callable[[DraftHead, Progress], None] | None = None,
) -> DraftHead:
    """Returns the trained head.

    Args:
        rows: training text.
        features: what the target makes of it (`features.compute`, with the head's taps).
        minutes: wall-clock budget; the learning rate reaches its end with it, whatever speed the machine has.
        batch: rows per update.
        rate: peak learning rate.
        observe: called after every update.
    """
    if batch > len(rows):
        raise ValueError(f"a batch of {batch} rows was asked for, but there are only {len(rows)} rows")
    rule = optimizer.rule()
    params, state = head.params, rule.init(head.params)
    start, updates = time.monotonic(), 0
    for epoch in itertools.count():
        order = np.random.default_rng((seed, epoch)).permutation(len(rows))
        for at in range(0, len(rows) - batch + 1, batch):
            seconds = time.monotonic() - start
            if seconds >= 60 * minutes:
                return dataclasses.replace(head, params=params)
            chosen = order[at : at + batch]
            key = jax.random.fold_in(jax.random.key(seed), updates)
            size = jnp.float32(optimizer.schedule(seconds / (60 * minutes), rate))
            text = rows.tokens[chosen], rows.answer[chosen], features[chosen]
            params, state, report = update(head, params, state, target, *text, key, size, rule, objective)
            report.law.block_until_ready()  # or updates queue up while the clock that sets their rate stands
            updates += 1
            if observe is not None:
                observe(dataclasses.replace(head, params=params), Progress(seconds, updates, epoch, report))
    raise AssertionError("unreachable: epochs never end")


@functools.partial(jax.jit, static_argnames=("rule", "objective"))
def update(
    head: DraftHead,
    params: Any,
    state: optax.OptState,
    target: LM,
    tokens: jax.Array,
    answer: jax.Array,
    features: jax.Array,
    key: jax.Array,
    rate: jax.Array,
    rule: optax.GradientTransformation,
    objective: Objective,
) -> tuple[Any, optax.OptState, Report]:
    """One update: new parameters, new optimizer state, parts of the loss before it."""

    def objective_of(params: Any) -> tuple[jax.Array, Report]:
        return loss(dataclasses.replace(head, params=params), target, tokens, answer, features, key, objective)

    gradients, report = jax.grad(objective_of, has_aux=True)(params)
    changes, state = rule.update(gradients, state, params)
    return optax.apply_updates(params, jax.tree.map(lambda change: rate * change, changes)), state, report


def evaluate(
    head: DraftHead, target: LM, rows: Rows, features: Float[np.ndarray, "r n f"], steps: int, batch: int
) -> Report:
    """Parts of the loss over `rows`, without noise; an incomplete last batch is left out."""
    objective = Objective(steps=steps, feature_weight=0.0, noise=0.0)
    measure = jax.jit(functools.partial(loss, objective=objective))
    reports = [
        measure(
            head,
            target,
            rows.tokens[at : at + batch],
            rows.answer[at : at + batch],
            features[at : at + batch],
            jax.random.key(0),
        )[1]
        for at in range(0, len(rows) - batch + 1, batch)
    ]
    return jax.tree.map(lambda *parts: sum(parts) / len(parts), *reports)
