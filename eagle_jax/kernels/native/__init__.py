"""Machine code for the CPU, which LLVM makes on first use (llvmlite) and XLA's programs call.

XLA:CPU packs the weight of every product anew, which takes longer than a product of few rows, and begins some twenty
small operations for attention. Here weights lie as they are read (`models.strips`), and attention is one operation.

    code       what LLVM makes machine code of: pointers, loops, vectors of 16 numbers
    calls      what XLA calls: handlers of its foreign function interface
    threads    work that several threads take part in
    math       exp, sums, transposition
    tiles      sums of products in registers; those below are made of them
    products   rows times a weight
    blocks     rows of a head over some keys and values
    attention  `kernels.base.Case`, made of them
    library    all of it, once a process
"""

import functools
import logging
import os
import sys

import jax
from jaxtyping import Array, Float

from eagle_jax.kernels.base import Case
from eagle_jax.sharding.tracing import is_spread

VARIABLE = "EAGLE_JAX_NATIVE"

log = logging.getLogger("eagle_jax.kernels")


def is_used() -> bool:
    """Whether this code is used: on CPUs, unless `VARIABLE` is "off".

    Raises:
        ValueError: `VARIABLE` is neither "on" nor "off".
    """
    return _refusal() is None


def _refusal() -> str | None:
    """Why it is not."""
    wanted = os.environ.get(VARIABLE, "on")
    if wanted not in ("on", "off"):
        raise ValueError(f'{VARIABLE}={wanted!r} is not known; expected "on" or "off"')
    if jax.default_backend() != "cpu":
        return "it is for CPUs"
    return f"{VARIABLE} is off" if wanted == "off" else _fault()


@functools.cache
def _fault() -> str | None:
    """Why it cannot be made here, which is told once; None if XLA knows it."""
    try:
        if sys.maxsize < 2**32 or sys.byteorder != "little":
            raise NotImplementedError("it is for machines of 64 bits, lowest byte first")
        from eagle_jax.kernels.native import library

        library.make()
    # an llvmlite that is too old has other functions, or takes other arguments
    except (AttributeError, ImportError, NotImplementedError, OSError, RuntimeError, TypeError) as error:
        log.warning("products and attention are left to XLA, which takes longer: %s", error)
        return str(error)
    return None


def product(rows: Float[Array, "r i"], strips: Float[Array, "s _ _"]) -> Float[Array, "r o"]:
    """`rows @ weight.T` of a weight in strips."""
    from eagle_jax.kernels.native import library, products

    library.make()
    return products.product(rows, strips)


def attend(case: Case) -> Float[Array, "b k r c"]:
    """Tree attention on one CPU device.

    Raises:
        NotImplementedError: it is not used, or the case is none of those that it is made for.
    """
    if (reason := _refusal()) is not None:
        raise NotImplementedError(reason)
    if is_spread():
        raise NotImplementedError("the program is over several devices")
    from eagle_jax.kernels.native import attention

    return attention.attend(case)
