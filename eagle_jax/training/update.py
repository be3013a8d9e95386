"""One update of a head, and its evaluation on held-out text."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P
from jaxtyping import Array, Bool, Float, Int, UInt

from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA, Rules, Sharding, fitting, traced_over
from eagle_jax.struct import pytree
from eagle_jax.training.data import Rows
from eagle_jax.training.features import hidden_states
from eagle_jax.training.loss_parts import LossReport
from eagle_jax.training.objective import Objective
from eagle_jax.training.optimizer import global_norm
from eagle_jax.workarounds import exact_reduction_options

REPLICATED: Rules = ()


@pytree
class TrainState:
    """State that updates change.

    Attributes:
        params: the head's weights, float32.
        moments: the optimizer's state.
        step: number of updates done.
        key: key data of the run's PRNG key, which with `step` seeds the noise of an update.
    """

    params: Any
    moments: Any
    step: Int[Array, ""]
    key: UInt[Array, "_"]


@pytree
class UpdateMetrics:
    """Metrics of one update.

    Attributes:
        loss: mean loss of the update's passes.
        gradient_norm: norm of the mean gradient before clipping.
        report: parts of the loss by draft step.
    """

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    report: LossReport


def begin(head: AnyHead, rule: optax.GradientTransformation, key: jax.Array) -> TrainState:
    """Returns the state before the first update, with copies of the weights that updates may donate."""
    params = jax.tree.map(lambda p: jnp.array(p, jnp.float32), head.params)
    return TrainState(params=params, moments=rule.init(params), step=jnp.int32(0), key=jax.random.key_data(key))


def update(
    state: TrainState,
    head: AnyHead,
    target: LM,
    tokens: Int[Array | np.ndarray, "a b n"],
    answer: Bool[Array | np.ndarray, "a b n"],
    features: Float[Array | np.ndarray, "a b n f"] | None = None,
    *,
    rule: optax.GradientTransformation,
    objective: Objective,
    remat: bool = False,
    sharding: Sharding | None = None,
) -> tuple[TrainState, UpdateMetrics]:
    """Runs one update over `a` passes of `b` rows each; returns the new state and metrics.

    Args:
        head: the head without its weights (`without_params`), which are in the state.
        features: the target's `features.hidden_states`; None to compute them.
        remat: whether to rematerialize activations of draft steps.
        sharding: the sharding; None for one device.
    """
    static = {"rule": rule, "objective": objective, "remat": remat, "sharding": sharding}
    return compiled_update()(state, head, target, tokens, answer, features, **static)


@functools.cache
def compiled_update() -> Any:
    """Returns `update`, jitted, with the state donated."""
    static = ("rule", "objective", "remat", "sharding")
    return jax.jit(
        _update_over, static_argnames=static, donate_argnames=("state",), compiler_options=exact_reduction_options()
    )


def _update_over(
    state: TrainState,
    head: AnyHead,
    target: LM,
    tokens: Int[Array, "a b n"],
    answer: Bool[Array, "a b n"],
    features: Float[Array, "a b n f"] | None = None,
    *,
    rule: optax.GradientTransformation,
    objective: Objective,
    remat: bool,
    sharding: Sharding | None,
) -> tuple[TrainState, UpdateMetrics]:
    with traced_over(sharding):
        new, outcome = _update(state, head, target, (tokens, answer, features), rule, objective, remat)
    return (
        (new, outcome) if sharding is None else (sharding.keep(new, sharding.head), sharding.keep(outcome, REPLICATED))
    )


def _update(
    state: TrainState,
    head: AnyHead,
    target: LM,
    text: tuple[Array, Array, Array | None],
    rule: optax.GradientTransformation,
    objective: Objective,
    remat: bool,
) -> tuple[TrainState, UpdateMetrics]:
    noise_key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

    def one_pass(total: Any, text: tuple[Array, Array, Array | None, Array]) -> tuple[Any, Any]:
        with_gradient = jax.value_and_grad(_loss, has_aux=True)
        parts, gradients = with_gradient(state.params, head, target, *text, objective, remat)
        return jax.tree.map(jnp.add, total, gradients), parts

    passes = text[0].shape[0]
    keys = jax.random.split(noise_key, passes)
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    total, (losses, reports) = jax.lax.scan(one_pass, zeros, (*text, keys))
    gradients = jax.tree.map(lambda g: g / passes, total)
    changes, moments = rule.update(gradients, state.moments, state.params)
    new = TrainState(
        params=optax.apply_updates(state.params, changes), moments=moments, step=state.step + 1, key=state.key
    )
    report = jax.tree.map(lambda parts: jnp.mean(parts, axis=0), reports)
    return new, UpdateMetrics(loss=jnp.mean(losses), gradient_norm=global_norm(gradients), report=report)


def _loss(
    params: Any,
    head: AnyHead,
    target: LM,
    tokens: Array,
    answer: Array,
    features: Array | None,
    key: jax.Array,
    objective: Objective,
    remat: bool,
) -> tuple[Array, LossReport]:
    """Computes the loss of the head with these weights, in the target's dtype."""
    cast_params = jax.tree.map(lambda p: p.astype(target.dtype), params)
    cast_head = dataclasses.replace(head, params=cast_params)
    if features is None:  # the barrier makes it bitwise equal to the features in files
        features = jax.lax.optimization_barrier(jax.lax.stop_gradient(hidden_states(target, tokens, head.taps)))
    loss = HEAD_KINDS[head.kind].get("loss")
    return loss(cast_head, target, tokens, answer, features, key, objective, remat=remat)


@functools.cache
def _compiled_measure() -> Any:
    return jax.jit(_measure, static_argnames=("objective", "sharding"), compiler_options=exact_reduction_options())


def _measure(
    params: Any,
    head: AnyHead,
    target: LM,
    tokens: Array,
    answer: Array,
    *,
    objective: Objective,
    sharding: Sharding | None = None,
) -> tuple[Array, LossReport]:
    with traced_over(sharding):
        measured = _loss(params, head, target, tokens, answer, None, jax.random.key(0), objective, False)
    return measured if sharding is None else sharding.keep(measured, REPLICATED)


def evaluate(
    params: Any,
    head: AnyHead,
    target: LM,
    rows: Rows,
    *,
    batch: int,
    objective: Objective,
    sharding: Sharding | None = None,
) -> tuple[float, LossReport]:
    """Returns the mean loss and its parts over all `rows`, weighted by the answer tokens of batches.

    Args:
        head: the head without its weights.
    """
    parts, weights = [], []
    for start in range(0, len(rows), batch):
        tokens, answer = (_pad_batch(part[start : start + batch], batch) for part in (rows.tokens, rows.answer))
        text = (on_devices(part, sharding) for part in (tokens, answer))
        parts.append(
            jax.device_get(_compiled_measure()(params, head, target, *text, objective=objective, sharding=sharding))
        )
        weights.append(answer.sum())
    loss, report = jax.tree.map(lambda *each: np.average(np.stack(each), axis=0, weights=weights), *parts)
    return float(loss), report


def on_devices(rows: np.ndarray, sharding: Sharding | None, axis: int = 0) -> np.ndarray | jax.Array:
    """Shards rows of text, which every process has, over `data` along `axis`."""
    if sharding is None:
        return rows
    where = jax.NamedSharding(sharding.mesh, fitting(P(*[None] * axis, DATA), rows.shape, sharding.sizes))
    return jax.make_array_from_callback(rows.shape, where, lambda index: rows[index])


def without_params(head: AnyHead) -> AnyHead:
    """Returns the head without its weights, which are in the state during training."""
    return dataclasses.replace(head, params={})


def accepted_length(agreement: Float[np.ndarray, "d"]) -> float:
    """Returns the expected tokens per step of a chain: 1 + the sum of the products of agreements up to each depth."""
    return 1 + float(np.cumprod(agreement).sum())


def _pad_batch(part: np.ndarray, batch: int) -> np.ndarray:
    """Pads an incomplete batch with rows of zeros."""
    return np.concatenate([part, np.zeros((batch - len(part), *part.shape[1:]), part.dtype)])
