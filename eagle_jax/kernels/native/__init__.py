"""Machine code for the CPU, which LLVM makes on first use (llvmlite) and XLA's programs call.

XLA:CPU packs the weight of every product anew, which takes longer than a product of few rows, and begins some twenty
small operations for attention. Here weights lie as they are read (`models.strips`), and attention is one operation.
What a row gets is the same to the bit whatever is beside it: where all of a model is made of these, a token's logits
are the same in any tree and batch.

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
    largest    the largest numbers of rows
    lookup     rows of a large table
    given      what layers and heads are given
    parts      what products and the halves of a decoder layer are made of
    first_half norm, projections, rotation, attention, output matrix
    second_half norm, MLP
    head_pass  a pass of an EAGLE-1 head
    guesses    a chain of guesses, pass after pass
    library    all of it, in parts, once a process
"""

import functools
import logging
import os
import sys

import jax
from jaxtyping import Array, Float, Int, UInt32

from eagle_jax.kernels.base import Case
from eagle_jax.kernels.native.given import ChainOf, Gated, HeadWeights, Mixing, Seen
from eagle_jax.models.cache import KV
from eagle_jax.sharding.tracing import is_spread

VARIABLE = "EAGLE_JAX_NATIVE"
ACTIVATIONS_VARIABLE, ROWS = "EAGLE_JAX_ACTIVATIONS", ("int16", "int8")  # read when a program is compiled

NORM_MULTIPLE = 16  # numbers that are computed together, `code.LANES`

log = logging.getLogger("eagle_jax.kernels")


def is_used(rounded: bool = False) -> bool:
    """Whether this code is used, or that for rounded weights: on CPUs, unless `VARIABLE` is "off".

    Raises:
        ValueError: `VARIABLE` or `ACTIVATIONS_VARIABLE` is none of its values.
    """
    _asked(ACTIVATIONS_VARIABLE, ROWS)  # told where a model is loaded, and not only where it is used
    return _refusal(rounded) is None


def is_used_alone() -> bool:
    """Whether this code is used in the program that is traced: in one over several devices it is not."""
    return is_used() and not is_spread()


def _asked(variable: str, known: tuple[str, str]) -> str:
    """The value of a variable, the first one if nothing is said."""
    wanted = os.environ.get(variable, known[0])
    if wanted not in known:
        raise ValueError(f'{variable}={wanted!r} is not known; expected "{known[0]}" or "{known[1]}"')
    return wanted


def _refusal(rounded: bool = False) -> str | None:
    """Why it is not."""
    wanted = _asked(VARIABLE, ("on", "off"))
    if jax.default_backend() != "cpu":
        return "it is for CPUs"
    if wanted == "off":
        return f"{VARIABLE} is off"
    return _fault() or (_fault(rounded=True) if rounded else None)


@functools.cache
def _fault(rounded: bool = False) -> str | None:
    """Why it cannot be made here, which is told once; None if XLA knows it."""
    try:
        if sys.maxsize < 2**32 or sys.byteorder != "little":
            raise NotImplementedError("it is for machines of 64 bits, lowest byte first")
        from eagle_jax.kernels.native import library

        library.make(library.ROUNDED if rounded else library.FLOATS)
    # an llvmlite that is too old has other functions, or takes other arguments
    except (AttributeError, ImportError, NotImplementedError, OSError, RuntimeError, TypeError) as error:
        what = "products of rounded weights" if rounded else "products and attention"
        log.warning("%s are left to XLA, which takes longer: %s", what, error)
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

    library.make(library.ROUNDED)
    return rounded.product(rows, words, scales, bits, row_bits())


def row_bits() -> int:
    """What rows are rounded to that meet rounded weights, 16 or, if asked for and this CPU multiplies bytes, 8."""
    from eagle_jax.kernels.native.numbers import by_bytes

    if _asked(ACTIVATIONS_VARIABLE, ROWS) == "int16":
        return 16
    if not by_bytes():
        _tell_of_bytes()
    return 8 if by_bytes() else 16


@functools.cache
def _tell_of_bytes() -> None:
    log.warning("rows are rounded to 16 bits, not to the 8 of %s: this CPU lacks avx512_vnni", ACTIVATIONS_VARIABLE)


def norm(x: Float[Array, "r h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "r h"]:
    """`x / sqrt(mean(x ** 2) + eps) * scale`, all float32; h is a multiple of `NORM_MULTIPLE`."""
    from eagle_jax.kernels.native import library, norms

    library.make()
    return norms.norm(x, scale, eps)


def best(x: Float[Array, "r v"], count: int, sharpness: float) -> tuple[Float[Array, "r k"], Int[Array, "r k"]]:
    """The `count` largest of each row and where they are, as log-probabilities if `sharpness` is not 0."""
    from eagle_jax.kernels.native import largest, library

    library.make()
    return largest.best(x, count, sharpness)


def rows(strips: Float[Array, "s _ _"], indices: Int[Array, "n"]) -> Float[Array, "n i"]:
    """Rows of a table in strips, in float32."""
    from eagle_jax.kernels.native import library, lookup

    library.make()
    return lookup.rows(strips, indices)


def mixing(
    residual: Float[Array, "b n h"], x: Float[Array, "b n i"], eps: float, weights: Mixing, seen: Seen, factor: float
) -> tuple[Float[Array, "b n h"], KV]:
    """`residual + o(attention(qkv(norm(x))))`, and the keys and values of its own; h and i are multiples of 16."""
    from eagle_jax.kernels.native import first_half, library

    library.make()
    return first_half.mixing(residual, x, eps, weights, seen, factor)


def mlp(x: Float[Array, "r h"], eps: float, weights: Gated, inner: int, wanted: Int[Array, ""]) -> Float[Array, "r h"]:
    """`x + down(silu(gate(norm(x))) up(norm(x)))`, with `inner` numbers in between; h is a multiple of 16. From the
    first row that is not wanted on it is zeros.
    """
    from eagle_jax.kernels.native import library, second_half

    library.make()
    return second_half.mlp(x, eps, weights, inner, wanted)


def head(
    embeddings: Float[Array, "b n h"],
    features: Float[Array, "b n h"],
    weights: HeadWeights,
    seen: Seen,
) -> tuple[Float[Array, "b n h"], KV, Float[Array, "b n d"]]:
    """`y = layer(fc([embedding ; feature]))`, its keys and values, and `output(y)`; zeros where rows are not wanted."""
    from eagle_jax.kernels.native import head_pass, library

    library.make(library.HEADS.format(weights.fc.dtype))
    return head_pass.head(embeddings, features, weights, seen)


def chain(given: ChainOf, weights: HeadWeights, seen: Seen) -> tuple[Float[Array, "1 d"], Int[Array, "1 d"]]:
    """Scores and tokens of guesses below each other, one pass of a head after the other."""
    from eagle_jax.kernels.native import guesses, library

    library.make(library.HEADS.format(weights.fc.dtype))
    return guesses.chain(given, weights, seen)


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
