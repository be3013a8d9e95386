"""One update of a head, and its measure on held-out text."""

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
from eagle_jax.training.loss_parts import Report
from eagle_jax.training.objective import Objective
from eagle_jax.training.optimizer import norm_of
from eagle_jax.workarounds import exact_reduction_options

EVERYWHERE: Rules = ()  # every device has all of it


@pytree
class TrainState:
    """All that changes from update to update.

    Attributes:
        params: the head's weights, float32.
        moments: the optimizer's state.
        step: updates done.
        key: key data of the run's PRNG key; the noise of an update is a function of it and of `step`.
    """

    params: Any
    moments: Any
    step: Int[Array, ""]
    key: UInt[Array, "_"]


@pytree
class Outcome:
    """What an update says about itself.

    Attributes:
        loss: mean over the passes of the update.
        gradient_norm: norm of the mean gradient, before clipping.
        report: the loss's parts by draft step.
    """

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    report: Report


def begin(head: AnyHead, rule: optax.GradientTransformation, key: jax.Array) -> TrainState:
    """Returns the state before the first update. It owns its arrays: the updates may overwrite them."""
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
) -> tuple[TrainState, Outcome]:
    """Runs one update over `a` passes of `b` rows each, and returns the state after it.

    Args:
        head: the head without its weights (`without_params`); those are the state's.
        features: what the target makes of the tokens (`features.hidden_states`); None lets it run here and now.
        remat: compute draft steps again for the gradient instead of keeping them.
        sharding: the devices that all of this is spread over; None is one.
    """
    fixed = {"rule": rule, "objective": objective, "remat": remat, "sharding": sharding}
    return compiled_update()(state, head, target, tokens, answer, features, **fixed)


@functools.cache
def compiled_update() -> Any:
    """Returns `update`, jitted once per process. The state is donated."""
    fixed = ("rule", "objective", "remat", "sharding")
    return jax.jit(
        _update_over, static_argnames=fixed, donate_argnames=("state",), compiler_options=exact_reduction_options()
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
) -> tuple[TrainState, Outcome]:
    with traced_over(sharding):
        new, outcome = _update(state, head, target, (tokens, answer, features), rule, objective, remat)
    return (
        (new, outcome) if sharding is None else (sharding.keep(new, sharding.head), sharding.keep(outcome, EVERYWHERE))
    )


def _update(
    state: TrainState,
    head: AnyHead,
    target: LM,
    text: tuple[Array, Array, Array | None],
    rule: optax.GradientTransformation,
    objective: Objective,
    remat: bool,
) -> tuple[TrainState, Outcome]:
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
    return new, Outcome(loss=jnp.mean(losses), gradient_norm=norm_of(gradients), report=report)


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
) -> tuple[Array, Report]:
    """Returns the loss of a head with these weights, computed in the target's dtype."""
    rounded = jax.tree.map(lambda p: p.astype(target.dtype), params)
    rounded_head = dataclasses.replace(head, params=rounded)
    if features is None:  # the barrier makes it bitwise equal to the features in files
        features = jax.lax.optimization_barrier(jax.lax.stop_gradient(hidden_states(target, tokens, head.taps)))
    loss = HEAD_KINDS[head.kind].get("loss")
    return loss(rounded_head, target, tokens, answer, features, key, objective, remat=remat)


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
) -> tuple[Array, Report]:
    with traced_over(sharding):
        measured = _loss(params, head, target, tokens, answer, None, jax.random.key(0), objective, False)
    return measured if sharding is None else sharding.keep(measured, EVERYWHERE)


def evaluate(
    params: Any,
    head: AnyHead,
    target: LM,
    rows: Rows,
    *,
    batch: int,
    objective: Objective,
    sharding: Sharding | None = None,
) -> tuple[float, Report]:
    """Returns the loss and its parts over all `rows`, each batch weighted by its answer tokens.

    Args:
        head: without its weights.
        sharding: the devices that all of this is spread over.
    """
    parts, weights = [], []
    for at in range(0, len(rows), batch):
        tokens, answer = (_filled_up(part[at : at + batch], batch) for part in (rows.tokens, rows.answer))
        text = (on_devices(part, sharding) for part in (tokens, answer))
        parts.append(
            jax.device_get(_compiled_measure()(params, head, target, *text, objective=objective, sharding=sharding))
        )
        weights.append(answer.sum())
    loss, report = jax.tree.map(lambda *each: np.average(np.stack(each), axis=0, weights=weights), *parts)
    return float(loss), report


def on_devices(rows: np.ndarray, sharding: Sharding | None, axis: int = 0) -> np.ndarray | jax.Array:
    """Returns the rows of text, which every process has, spread over `data` along `axis`."""
    if sharding is None:
        return rows
    where = jax.NamedSharding(sharding.mesh, fitting(P(*[None] * axis, DATA), rows.shape, sharding.sizes))
    return jax.make_array_from_callback(rows.shape, where, lambda index: rows[index])


def without_params(head: AnyHead) -> AnyHead:
    """Returns the head without its weights, which are the state's while it is trained."""
    return dataclasses.replace(head, params={})


def accepted_length(agreement: Float[np.ndarray, "d"]) -> float:
    """Returns tokens per step for a drafted chain: the target's own, and each drafted one while all so far agree."""
    return 1 + float(np.cumprod(agreement).sum())


def _filled_up(part: np.ndarray, batch: int) -> np.ndarray:
    """Appends rows of zeros, without answers, to a last batch that is not full."""
    return np.concatenate([part, np.zeros((batch - len(part), *part.shape[1:]), part.dtype)])
