"""Machine code for the CPU, which LLVM makes on first use (llvmlite) and XLA's programs call.

XLA:CPU packs the weight of every product anew, which takes longer than a product of few rows, and begins some twenty
small operations for attention. Here weights lie as they are read (`models.strips`), and attention is one operation.
What a row gets is the same to the bit whatever is beside it: a token's logits are the same in any tree and batch.

    code       what LLVM makes machine code of: pointers, loops, vectors of 16 numbers
    calls      what XLA calls: handlers of its foreign function interface
    threads    work that several threads take part in
    math       exp, sums, transposition
    numbers    what is multiplied: float32, pairs of bfloat16, rounded weights
    tiles      sums of products in registers; those below are made of them
    products   rows times a weight of floats
    rounded    rows times a rounded weight
    blocks     rows of a head over some keys and values
    attention  `kernels.base.Case`, made of them
    norms      root mean square norms
    library    all of it, once a process
"""

import functools
import logging
import os
import sys

import jax
from jaxtyping import Array, Float, UInt32

from eagle_jax.kernels.base import Case
from eagle_jax.sharding.tracing import is_spread

VARIABLE = "EAGLE_JAX_NATIVE"
ACTIVATIONS_VARIABLE = "EAGLE_JAX_ACTIVATIONS"

NORM_MULTIPLE = 16

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


def rounded_product(
    rows: Float[Array, "r i"], words: UInt32[Array, "s _ w"], scales: Float[Array, "s g w"], bits: int
) -> Float[Array, "r o"]:
    """`rows @ weight.T` of a rounded weight in strips."""
    from eagle_jax.kernels.native import library, rounded

    library.make()
    return rounded.product(rows, words, scales, bits, row_bits())


def row_bits() -> int:
    """What rows are rounded to that meet rounded weights, 16 or, if asked for and this CPU multiplies bytes, 8.

    Raises:
        ValueError: `ACTIVATIONS_VARIABLE` is neither "int16" nor "int8".
    """
    from eagle_jax.kernels.native.numbers import by_bytes

    wanted = os.environ.get(ACTIVATIONS_VARIABLE, "int16")
    if wanted not in ("int16", "int8"):
        raise ValueError(f'{ACTIVATIONS_VARIABLE}={wanted!r} is not known; expected "int16" or "int8"')
    return 8 if wanted == "int8" and by_bytes() else 16


def norm(x: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """`x / sqrt(mean(x ** 2) + eps) * scale`, all float32; h is a multiple of `NORM_MULTIPLE`."""
    from eagle_jax.kernels.native import library, norms

    library.make()
    return norms.norm(x, scale, eps)


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
