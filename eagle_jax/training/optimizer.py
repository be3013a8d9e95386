"""The update rule: AdamW, or Muon on matrices and AdamW on the rest, under a schedule."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float

from eagle_jax.training.settings import OptimizerConfig

ADAM_OVER_MUON = 0.5  # learning rate of embeddings, norms and biases, relative to that of the matrices


@functools.lru_cache(maxsize=8)
def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Returns the rule of a run of `steps` updates: clipping, then AdamW or Muon, times the scheduled rate.

    The same configuration gives the same object, so that updates are compiled once.
    """
    clips = {
        "value": optax.clip(config.clip_at),
        "norm": optax.stateless(lambda updates, _: clipped(updates, config.clip_at)),
        "none": optax.identity(),
    }
    b1, b2 = config.betas
    steppers = {
        "adamw": lambda: optax.adamw(1.0, b1=b1, b2=b2, weight_decay=config.weight_decay),
        "muon": lambda: muon(config.weight_decay, b1=b1, b2=b2),
    }
    scale = optax.scale_by_schedule(rate_at(config, steps))
    return _lenient(optax.chain(clips[config.clip], steppers[config.name](), scale))


def norm_of(gradients: Any) -> Float[Array, ""]:
    """Returns the norm of all gradients together.

    Rows first, then their sums, and a barrier that keeps XLA from making one sum of the two: on CPU, with jaxlib
    0.10.2 and `workarounds.exact_reduction_options`, that one would be off by more than a thousandth for 4,096 x 8,192.
    """
    rows = [jnp.sum(jnp.atleast_1d(g) ** 2, axis=-1) for g in jax.tree.leaves(gradients)]
    return jnp.sqrt(sum((jnp.sum(row) for row in jax.lax.optimization_barrier(rows)), jnp.zeros(())))


def clipped(gradients: Any, limit: float) -> Any:
    """Scales all gradients down by one factor where their norm is over the limit (Pascanu et al. 2013).

    Optax's own takes the norm as one sum.
    """
    shrink = jnp.minimum(1.0, limit / jnp.maximum(norm_of(gradients), jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda g: g * shrink, gradients)


def rate_at(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate by update: linear warm-up to the peak, then the decay, up to the last update."""
    falling = {
        "linear": lambda share: 1 - (1 - config.final) * share,
        "cosine": lambda share: config.final + (1 - config.final) * 0.5 * (1 + jnp.cos(jnp.pi * share)),
        "constant": jnp.ones_like,
    }[config.decay]

    def rate(count: jax.typing.ArrayLike) -> jax.Array:
        done = jnp.asarray(count, jnp.float32)
        share = jnp.clip((done - config.warmup) / max(steps - config.warmup, 1), 0, 1)
        return config.rate * jnp.minimum((done + 1) / max(config.warmup, 1), 1) * falling(share)

    return rate


def muon(weight_decay: float, b1: float = 0.9, b2: float = 0.95) -> optax.GradientTransformation:
    """Returns Muon for matrices and AdamW for the rest, for a learning rate of 1.

    Muon's steps have the size of AdamW's (`consistent_rms`), so its learning rate means the same.
    """

    def matrices(params: Any) -> Any:
        dimensions = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: dimensions if path[-1].key == "weight" else None, params
        )

    return optax.contrib.muon(
        learning_rate=1.0,
        adam_learning_rate=ADAM_OVER_MUON,
        weight_decay=weight_decay,
        adam_b1=b1,
        adam_b2=b2,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=matrices,
    )


def _lenient(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Optax promotes dtypes and ranks implicitly: its update runs under JAX's ordinary rules, not the caller's."""

    # Optax's own type of a state is a recursive alias, which beartype refuses for some versions of chex.
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return rule.update(updates, state, params)

    return optax.GradientTransformation(rule.init, update)
