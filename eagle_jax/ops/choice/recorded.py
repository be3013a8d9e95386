"""The calls of operations that a function makes, found by tracing it: a model's own shapes, for any family."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class Call(NamedTuple):
    """A call of an operation, its arrays as shapes."""

    operation: str
    shape: str
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    fixed: dict[str, Any]


_calls: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar("calls", default=None)


def recorder() -> list[Call] | None:
    """Returns where calls are recorded; None is nowhere."""
    return _calls.get()


@contextlib.contextmanager
def recording() -> Iterator[list[Call]]:
    """Computes what is traced inside by references, and adds each call to the yielded list."""
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record(calls: list[Call], call: Call) -> None:
    """Adds a call, its tracers as shapes."""

    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf

    calls.append(call._replace(args=jax.tree.map(shape, call.args)))
