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
import importlib.util
import logging
import os
import platform
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
    wanted = os.environ.get(VARIABLE, "on")
    if wanted not in ("on", "off"):
        raise ValueError(f'{VARIABLE}={wanted!r} is not known; expected "on" or "off"')
    return wanted == "on" and jax.default_backend() == "cpu" and _works()


@functools.cache
def _works() -> bool:
    """Whether LLVM is there and its code is known to XLA; tells once if not."""
    if sys.maxsize < 2**32 or sys.byteorder != "little" or importlib.util.find_spec("llvmlite") is None:
        log.info("products and attention are left to XLA: there is no llvmlite for %s", platform.machine())
        return False
    from eagle_jax.kernels.native import library

    try:
        library.make()
    except (NotImplementedError, OSError, RuntimeError) as error:
        log.warning("products and attention are left to XLA: %s", error)
        return False
    return True


def product(rows: Float[Array, "r i"], strips: Float[Array, "s _ _"]) -> Float[Array, "r o"]:
    """`rows @ weight.T` of a weight in strips; `is_used` comes before."""
    from eagle_jax.kernels.native.products import product

    return product(rows, strips)


def attend(case: Case) -> Float[Array, "b k r c"]:
    """Tree attention on one CPU device.

    Raises:
        NotImplementedError: the case is none of those that it is made for.
    """
    if not is_used():
        raise NotImplementedError("it is for CPUs")
    if is_spread():
        raise NotImplementedError("the program is over several devices")
    from eagle_jax.kernels.native.attention import attend

    return attend(case)
