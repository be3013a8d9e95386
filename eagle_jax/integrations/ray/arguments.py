"""Checks arguments in the caller's process, since an actor would fail again at each restart."""

import inspect
from collections.abc import Mapping
from typing import Any

from eagle_jax.api import Engine

OPTIONS = tuple(name for name in inspect.signature(Engine).parameters if name not in ("self", "model"))


def check_load(load: Any) -> None:
    """Raises TypeError if `load` is not callable."""
    if not callable(load):
        example = "functools.partial(eagle_jax.load, 'smollm2-135m-instruct')"
        raise TypeError(f"load={load!r}; expected a function without arguments that returns a model, such as {example}")


def engine_options(engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the options of an engine. Raises TypeError for an unknown name."""
    for name in engine or {}:
        if name not in OPTIONS:
            raise TypeError(f"engine has {name!r}, which is not an option of an engine; expected {', '.join(OPTIONS)}")
    return dict(engine or {})
