"""The jitted form of the programs of prefill and decoding."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from eagle_jax.workarounds import loop_options


@functools.cache
def compiled(program: Callable[..., Any], static: str | tuple[str, ...] = (), donated: str = "") -> Any:
    """Returns the program, jitted once per process. Weights are arguments, never its constants.

    Args:
        static: names of static arguments.
        donated: name of the argument whose arrays are donated: its caches are updated in place.
    """
    return jax.jit(program, static_argnames=static, donate_argnames=donated or None, compiler_options=loop_options())
