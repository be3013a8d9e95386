"""Records the calls of operations while a function is traced, which gives a model's shapes in any family."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class Call(NamedTuple):
    """A call of an operation, with shapes in place of arrays."""

    operation: str
    shape: str
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    fixed: dict[str, Any]


_calls: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar("calls", default=None)


def recorder() -> list[Call] | None:
    """Returns the list that calls are recorded in; None if they are not recorded."""
    return _calls.get()


@contextlib.contextmanager
def recording() -> Iterator[list[Call]]:
    """Makes programs traced in the block use references, and adds each call to the yielded list."""
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record(calls: list[Call], call: Call) -> None:
    """Adds a call, with shapes in place of tracers."""

    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf

    calls.append(call._replace(args=jax.tree.map(shape, call.args)))
