"""What both rooms are given, checked where it is given: in an actor it would fail again and again."""

import inspect
from collections.abc import Mapping
from typing import Any

from eagle_jax.api import Engine

OPTIONS = tuple(name for name in inspect.signature(Engine).parameters if name not in ("self", "model"))


def check_load(load: Any) -> None:
    """Raises TypeError for what cannot be called."""
    if not callable(load):
        example = "functools.partial(eagle_jax.load, 'smollm2-135m-instruct')"
        raise TypeError(f"load={load!r}; expected a function without arguments that makes a model, such as {example}")


def engine_options(engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the options of engines, or none. Raises TypeError for a name that is none of them."""
    for name in engine or {}:
        if name not in OPTIONS:
            raise TypeError(f"engine has {name!r}, which is no option of an engine; expected {', '.join(OPTIONS)}")
    return dict(engine or {})
