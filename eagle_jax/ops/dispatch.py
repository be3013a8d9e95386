"""Chooses the backend that computes an operation.

An operation has a reference in plain JAX, which runs everywhere (`xla`), and implementations in the backends; `embed`
has the reference alone.

| backend | what it has | used by default |
|---|---|---|
| `cpu` | machine code for all operations | on x86 CPUs; not measured on ARM yet |
| `tpu` | a Pallas kernel for tree_attention | never: not measured on a TPU yet |
| `gpu` | Pallas kernels for tree_attention and int4 linear maps | never: not measured on a GPU yet |
| `prefix` | XLA over a prefix of the cache, for tree_attention | never |

If candidates were measured on this device (`ops.choice`), the fastest correct one computes all calls of a class
(`choice.shapes`), in programs for one device.

The environment variable `EAGLE_JAX_OPS` overrides this for all operations (`xla`) or for one (`tree_attention:tpu`);
several are separated by commas. It is read when a program is traced. An implementation that cannot compute a call
raises NotImplementedError with the reason; then the next one is tried, and finally `xla`. The logger `eagle_jax.ops`
reports each reason once: as a warning if the backend was requested by name, else as information.
"""

import contextlib
import contextvars
import functools
import importlib
import logging
import os
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.ops.choice.findings import REFERENCE, table
from eagle_jax.ops.choice.recorded import Call, record, recorder
from eagle_jax.ops.choice.shapes import shape_of, weight_shape
from eagle_jax.platform import is_x86
from eagle_jax.sharding.tracing import current_sharding, is_sharded

VARIABLE = "EAGLE_JAX_OPS"
ACTIVATIONS = (
    "EAGLE_JAX_ACTIVATIONS"  # integer type of activations in the CPU backend's products with quantized weights
)
BACKENDS = {name: f"eagle_jax.ops.{name}.backend" for name in ("cpu", "tpu", "gpu")} | {
    "prefix": "eagle_jax.ops.prefix"
}
DEFAULTS = {"cpu": "cpu"} if is_x86() else {}  # platform: backend
OPERATIONS = ("linear", "rms_norm", "tree_attention", "attention_block", "mlp_block", "top_k", "argmax")


class _Trial(NamedTuple):
    operation: str
    candidate: str
    refused: dict[str, str]


log = logging.getLogger("eagle_jax.ops")
_forced: contextvars.ContextVar[_Trial | None] = contextvars.ContextVar("forced", default=None)
_logged: set[tuple[str, str, str]] = set()


def dispatch(
    operation: str,
    reference: Callable[..., Any],
    *args: Any,
    differentiable: Callable[..., Any] | None = None,
    **fixed: Any,
) -> Any:
    """Computes an operation with the first backend that supports it.

    Under differentiation the reference computes value and gradient.

    Args:
        reference: the operation in plain JAX.
        differentiable: replaces the reference under differentiation; None is the reference itself.
        args: pytrees of arrays.
        fixed: arguments that are not differentiated, such as Python numbers.
    """
    call_class = None if is_sharded() else shape_of(operation, args, fixed)
    if (calls := recorder()) is not None:
        record(calls, Call(operation, call_class or _unpacked_shape(operation, args), reference, args, fixed))
        return reference(*args, **fixed)
    for name in candidates(operation, call_class):
        try:
            implementation = _implementation(name, operation)
            differentiable_reference = functools.partial(differentiable or reference, **fixed)
            return _with_gradient_of(differentiable_reference, implementation, fixed)(*args)
        except NotImplementedError as reason:
            if (trial := _forced.get()) is not None:
                trial.refused[name] = str(reason)
            else:
                log_once(name, operation, str(reason))
    return reference(*args, **fixed)


def candidates(operation: str, call_class: str | None = None) -> list[str]:
    """Returns the backends to try, in order, before the reference.

    Args:
        call_class: class of the call, which selects a measured choice; None ignores measurements.

    Raises:
        ValueError: `EAGLE_JAX_OPS` names something unknown.
    """
    choice = requested_backend(operation)
    if choice is None and call_class is not None:
        choice = table().get((operation, call_class))
    if choice == REFERENCE:
        return []
    names = (choice, DEFAULTS.get(jax.default_backend()))
    return list(dict.fromkeys(name for name in names if name))


def available_candidates(operation: str) -> list[str]:
    """Returns all candidates for an operation on this device, the reference first."""
    names = [name for name in BACKENDS if name in (jax.default_backend(), "prefix")]
    return [REFERENCE, *(name for name in names if hasattr(_module(name), operation))]


def is_first(name: str, operation: str) -> bool:
    """Returns whether this backend is tried first."""
    return candidates(operation)[:1] == [name]


def requested_backend(operation: str) -> str | None:
    """Returns the backend that `EAGLE_JAX_OPS` names for an operation, or the candidate of a trial; None if neither."""
    if (trial := _forced.get()) is not None and trial.operation == operation:
        return trial.candidate
    return _parsed(os.environ.get(VARIABLE, "")).get(operation)


@contextlib.contextmanager
def forced(operation: str, candidate: str) -> Iterator[dict[str, str]]:
    """Makes programs traced in the block use this candidate; yields the reasons of backends that refused, by name."""
    trial = _Trial(operation, candidate, {})
    token = _forced.set(trial)
    try:
        yield trial.refused
    finally:
        _forced.reset(token)


def environment_settings() -> dict[str, str]:
    """Returns the environment variables that are set and change how operations are computed."""
    return {name: value for name in (VARIABLE, ACTIVATIONS) if (value := os.environ.get(name))}


def tracing_context() -> Hashable:
    """Returns a key of everything but arguments that operations depend on when they are traced."""
    trial, calls = _forced.get(), recorder()
    trial_key = None if trial is None else (trial.operation, trial.candidate)
    recorder_key = None if calls is None else id(calls)
    read = tuple(environment_settings().items()), tuple(DEFAULTS.items()), tuple(table().items())
    return *read, trial_key, recorder_key, jax.default_backend(), current_sharding()


@functools.cache
def _parsed(value: str) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in value.split(","))):
        operation, colon, name = entry.rpartition(":")
        if name not in (REFERENCE, *BACKENDS) or (colon and operation not in OPERATIONS):
            raise ValueError(
                f"{VARIABLE}={value!r} has {entry!r}; expected a backend ({', '.join((REFERENCE, *BACKENDS))}), or "
                f"operation:backend with an operation of {', '.join(OPERATIONS)}"
            )
        chosen |= dict.fromkeys((operation,) if colon else OPERATIONS, name)
    return chosen


@functools.cache
def _module(name: str) -> Any:
    try:
        return importlib.import_module(BACKENDS[name])
    except ImportError as error:
        # returned, not raised, so that it is cached
        return NotImplementedError(f"the backend cannot be imported ({error})")


def _implementation(name: str, operation: str) -> Callable[..., Any]:
    module = _module(name)
    if isinstance(module, NotImplementedError):
        raise module
    if (function := getattr(module, operation, None)) is None:
        raise NotImplementedError(f"it has no {operation}")
    return function


def _unpacked_shape(operation: str, args: tuple[Any, ...]) -> str:
    """Returns the class of a product with a packed weight."""
    return str(weight_shape(jax.eval_shape(args[1].unpack))) if operation == "linear" else ""


def _with_gradient_of(
    reference: Callable[..., Any], implementation: Callable[..., Any], fixed: dict[str, Any]
) -> Callable[..., Any]:
    @jax.custom_vjp
    def run(*args: Any) -> Any:
        return implementation(*args, **fixed)

    def of_arrays(*args: Any) -> Any:
        return reference(*jax.tree.map(jnp.asarray, args))  # literals may not be jax.Array

    run.defvjp(lambda *args: jax.vjp(of_arrays, *args), lambda pullback, gradient: pullback(gradient))
    return run


def log_once(name: str, operation: str, reason: str) -> None:
    """Logs why a backend does not compute an operation, once for all layers."""
    if (name, operation, reason) not in _logged:
        _logged.add((name, operation, reason))
        level = logging.WARNING if requested_backend(operation) == name else logging.INFO
        log.log(level, "%s does not compute %s: %s", name, operation, reason)
