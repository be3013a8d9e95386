"""The update rule: Muon on matrices, AdamW on the rest, under a schedule that follows a share of the budget."""

import math
from typing import Any

import jax
import optax
import optax.contrib

ADAM_OVER_MUON = 0.5  # learning rate of embeddings, norms and biases, relative to that of the matrices


def rule(weight_decay: float = 0.1) -> optax.GradientTransformation:
    """Muon and AdamW for a learning rate of 1: multiply the updates by the real one.

    Muon's steps have the size of AdamW's (`consistent_rms`), so its learning rate means the same.
    """

    def matrices(params: Any) -> Any:
        dimensions = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: dimensions if path[-1].key == "weight" else None, params
        )

    muon = optax.contrib.muon(
        learning_rate=1.0,
        adam_learning_rate=ADAM_OVER_MUON,
        weight_decay=weight_decay,
        adam_b2=0.95,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=matrices,
    )
    return _lenient(optax.chain(optax.clip_by_global_norm(1.0), muon))


def schedule(progress: float, peak: float, warmup: float = 0.02, final: float = 0.02) -> float:
    """Learning rate after a share `progress` of the budget: linear warm-up, then a cosine down to `final * peak`."""
    if progress < warmup:
        return peak * progress / warmup
    along = min(1.0, (progress - warmup) / (1 - warmup))
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * along)))


def _lenient(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Optax promotes dtypes and ranks implicitly: its update runs under JAX's ordinary rules, whatever the caller's."""

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return rule.update(updates, state, params)

    return optax.GradientTransformation(rule.init, update)
