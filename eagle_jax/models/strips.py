"""Weights as `kernels.native` multiplies with them: some outputs beside each other, input after input."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.kernels import native
from eagle_jax.struct import pytree, static

WIDTHS = (64, 32, 16)  # outputs of a strip: the most that a weight's come apart into, or else 64 with zeros behind
PAIRED = {jnp.dtype(jnp.float32): 1, jnp.dtype(jnp.bfloat16): 2}  # inputs that lie beside each other


@pytree
class Strips:
    """A weight `[.., in]` in another form.

    Attributes:
        data: of float32 `[s, in, w]`, of bfloat16 `[s, in / 2, 2 w]`: two inputs of each output, then the next two. The
            last of the `s w` outputs may be more than the weight has, and are zeros.
        shape: of the weight.
    """

    data: Float[Array, "s _ _"]
    shape: tuple[int, ...] = static()

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, zeros behind it included."""
        return self.data.nbytes


def fit(weight: Any) -> bool:
    """Whether a weight is multiplied with in strips here: a float one, on CPU."""
    if not isinstance(weight, jax.Array) or weight.dtype not in PAIRED or weight.size == 0:
        return False
    return weight.shape[-1] % PAIRED[weight.dtype] == 0 and native.is_used()


@jax.jit  # step by step it would be copied several times
def in_strips(weight: Float[Array, "*o i"]) -> Strips:
    """A weight that fits, in strips."""
    inputs, pair = weight.shape[-1], PAIRED[weight.dtype]
    outputs = weight.size // inputs
    width = next((width for width in WIDTHS if outputs % width == 0), WIDTHS[0])
    whole = jnp.pad(weight.reshape(outputs, inputs), ((0, -outputs % width), (0, 0)))
    apart = whole.reshape(-1, width, inputs // pair, pair)
    return Strips(data=apart.swapaxes(1, 2).reshape(-1, inputs // pair, width * pair), shape=weight.shape)


@jax.jit
def out_of_strips(strips: Strips) -> Float[Array, "*o i"]:
    """The weight as it was."""
    whole = _apart(strips).swapaxes(1, 2).reshape(-1, strips.shape[-1])
    return whole[: strips.size // strips.shape[-1]].reshape(strips.shape)


def outputs_of(strips: Strips, indices: Int[Array, "*n"]) -> Float[Array, "*n i"]:
    """Rows of a weight `[out, in]`, one for each index."""
    apart = _apart(strips)
    width = apart.shape[2]
    return apart[indices // width, :, indices % width].reshape(*indices.shape, -1)


def _apart(strips: Strips) -> Float[Array, "s i w p"]:
    """`[s, in / p, w, p]`."""
    return strips.data.reshape(*strips.data.shape[:2], -1, PAIRED[strips.dtype])
