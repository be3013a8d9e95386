"""The optimizer: AdamW, or Muon for matrices and AdamW for the rest, with a learning rate schedule."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float

from eagle_jax.training.settings import OptimizerConfig

ADAM_OVER_MUON = 0.5  # learning rate of embeddings, norms and biases relative to matrices


@functools.lru_cache(maxsize=8)
def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Returns the optimizer of a run of `steps` updates: clipping, then AdamW or Muon, times the scheduled rate.

    It is cached by configuration, so that updates are compiled once.
    """
    clips = {
        "value": optax.clip(config.clip_at),
        "norm": optax.stateless(lambda updates, _: clip_by_norm(updates, config.clip_at)),
        "none": optax.identity(),
    }
    b1, b2 = config.betas
    steppers = {
        "adamw": lambda: optax.adamw(1.0, b1=b1, b2=b2, weight_decay=config.weight_decay),
        "muon": lambda: muon(config.weight_decay, b1=b1, b2=b2),
    }
    scale = optax.scale_by_schedule(rate_at(config, steps))
    return _with_standard_promotion(optax.chain(clips[config.clip], steppers[config.name](), scale))


def global_norm(gradients: Any) -> Float[Array, ""]:
    """Returns the global norm of the gradients.

    Rows are summed first, with a barrier that keeps XLA from merging both sums: on CPU, with jaxlib 0.10.2 and
    `workarounds.exact_reduction_options`, the merged sum of a 4,096 x 8,192 matrix has an error above 0.1 %.
    """
    rows = [jnp.sum(jnp.atleast_1d(g) ** 2, axis=-1) for g in jax.tree.leaves(gradients)]
    return jnp.sqrt(sum((jnp.sum(row) for row in jax.lax.optimization_barrier(rows)), jnp.zeros(())))


def clip_by_norm(gradients: Any, limit: float) -> Any:
    """Clips the gradients by their global norm (Pascanu et al. 2013), computed by `global_norm`, unlike optax's."""
    shrink = jnp.minimum(1.0, limit / jnp.maximum(global_norm(gradients), jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda g: g * shrink, gradients)


def rate_at(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate schedule: linear warm-up to the peak, then decay until the last update."""
    decay = {
        "linear": lambda share: 1 - (1 - config.final) * share,
        "cosine": lambda share: config.final + (1 - config.final) * 0.5 * (1 + jnp.cos(jnp.pi * share)),
        "constant": jnp.ones_like,
    }[config.decay]

    def rate(count: jax.typing.ArrayLike) -> jax.Array:
        done = jnp.asarray(count, jnp.float32)
        share = jnp.clip((done - config.warmup) / max(steps - config.warmup, 1), 0, 1)
        return config.rate * jnp.minimum((done + 1) / max(config.warmup, 1), 1) * decay(share)

    return rate


def muon(weight_decay: float, b1: float = 0.9, b2: float = 0.95) -> optax.GradientTransformation:
    """Returns Muon for matrices and AdamW for the rest, with learning rate 1.

    Muon's updates have the RMS of AdamW's (`consistent_rms`), so that both use the same learning rate.
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


def _with_standard_promotion(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Runs an optimizer's update with JAX's standard promotion rules, which optax relies on."""

    # Optax's type of the state is a recursive alias, which beartype rejects with some versions of chex.
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return rule.update(updates, state, params)

    return optax.GradientTransformation(rule.init, update)
