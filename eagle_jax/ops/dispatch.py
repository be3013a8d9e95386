"""Which backend computes an operation.

An operation has a reference in plain JAX, which runs everywhere (`xla`), and implementations in the backends; `embed`
has the reference alone.

| backend | what it has | used by default |
|---|---|---|
| `cpu` | machine code for all of them | on CPUs |
| `tpu` | a Pallas kernel for tree_attention | never: not measured on a TPU yet |
| `gpu` | Pallas kernels for tree_attention and int4 linear maps | never: not measured on a GPU yet |

The environment variable `EAGLE_JAX_OPS` chooses, for all operations (`xla`) or for one (`tree_attention:tpu`), with
commas between several. It is read when a program is traced. An implementation that cannot compute a call raises
NotImplementedError with the reason; then the next one is tried, `xla` at last. The logger `eagle_jax.ops` reports each
reason once: as a warning if the backend was asked for by name, else as information.
"""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.sharding.tracing import current_sharding

VARIABLE, REFERENCE = "EAGLE_JAX_OPS", "xla"
ACTIVATIONS = "EAGLE_JAX_ACTIVATIONS"  # bits that the CPU backend rounds rows to as they meet quantized weights
BACKENDS = {name: f"eagle_jax.ops.{name}.backend" for name in ("cpu", "tpu", "gpu")} | {
    "prefix": "eagle_jax.ops.prefix"
}
DEFAULTS = {"cpu": "cpu"}  # platform: backend
OPERATIONS = ("linear", "rms_norm", "tree_attention", "attention_block", "mlp_block", "top_k", "argmax")

log = logging.getLogger("eagle_jax.ops")
_logged: set[tuple[str, str, str]] = set()


def dispatch(
    operation: str,
    reference: Callable[..., Any],
    *args: Any,
    differentiable: Callable[..., Any] | None = None,
    **fixed: Any,
) -> Any:
    """Computes an operation by the first backend that supports it.

    Under differentiation the reference computes value and gradient.

    Args:
        reference: the operation in plain JAX.
        differentiable: replaces the reference under differentiation; None is the reference itself.
        args: pytrees of arrays.
        fixed: arguments that are not differentiated, such as Python numbers.
    """
    for name in candidates(operation):
        try:
            implementation = _implementation(name, operation)
            source = functools.partial(differentiable or reference, **fixed)
            return _with_gradient_of(source, implementation, fixed)(*args)
        except NotImplementedError as reason:
            log_once(name, operation, str(reason))
    return reference(*args, **fixed)


def candidates(operation: str) -> list[str]:
    """Backends to try, in order; the reference comes after them.

    Raises:
        ValueError: `EAGLE_JAX_OPS` names something unknown.
    """
    choice = asked(operation)
    if choice == REFERENCE:
        return []
    names = (choice, DEFAULTS.get(jax.default_backend()))
    return list(dict.fromkeys(name for name in names if name))


def is_first(name: str, operation: str) -> bool:
    """Whether this backend is the first that is tried."""
    return candidates(operation)[:1] == [name]


def asked(operation: str) -> str | None:
    """The backend that `EAGLE_JAX_OPS` names for an operation, if any."""
    return _parsed(os.environ.get(VARIABLE, "")).get(operation)


def settings() -> dict[str, str]:
    """The environment variables that are set and change how operations are computed."""
    return {name: value for name in (VARIABLE, ACTIVATIONS) if (value := os.environ.get(name))}


def tracing_context() -> Hashable:
    """All that operations read while they are traced and that is no argument: a key for what was traced before."""
    return tuple(settings().items()), tuple(DEFAULTS.items()), jax.default_backend(), current_sharding()


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
        return NotImplementedError(f"the backend cannot be imported ({error})")


def _implementation(name: str, operation: str) -> Callable[..., Any]:
    module = _module(name)
    if isinstance(module, NotImplementedError):
        raise module
    if (function := getattr(module, operation, None)) is None:
        raise NotImplementedError(f"it has no {operation}")
    return function


def _with_gradient_of(
    reference: Callable[..., Any], implementation: Callable[..., Any], fixed: dict[str, Any]
) -> Callable[..., Any]:
    @jax.custom_vjp
    def run(*args: Any) -> Any:
        return implementation(*args, **fixed)

    def of_arrays(*args: Any) -> Any:
        return reference(*jax.tree.map(jnp.asarray, args))  # constants come as arrays of another type

    run.defvjp(lambda *args: jax.vjp(of_arrays, *args), lambda pullback, gradient: pullback(gradient))
    return run


def log_once(name: str, operation: str, reason: str) -> None:
    """Logs why a backend does not compute an operation, once and not for each layer."""
    if (name, operation, reason) not in _logged:
        _logged.add((name, operation, reason))
        level = logging.WARNING if asked(operation) == name else logging.INFO
        log.log(level, "%s does not compute %s: %s", name, operation, reason)
