"""Packed float weights: panels of 16 to 64 outputs, stored input by input."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from eagle_jax.ops.packing import PackedWeight
from eagle_jax.struct import pytree, static
from eagle_jax.workarounds import gather

WIDTHS = (64, 32, 16)  # outputs of a panel: the largest that divides a weight's outputs, else 64 with zeros after
PAIRED = {jnp.dtype(jnp.float32): 1, jnp.dtype(jnp.bfloat16): 2}  # inputs of one output that are contiguous


@pytree
class Panels(PackedWeight):
    """A packed float weight `[.., in]`.

    Attributes:
        data: `[s, in, w]` of float32, or `[s, in / 2, 2 w]` of bfloat16, with two inputs of each output side by side.
            Outputs beyond those of the weight are zeros.
        shape: shape of the weight.
    """

    data: Float[Array, "s _ _"]
    shape: tuple[int, ...] = static()

    is_quantized = False
    hidden_rows = 8

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]  # read only, as all of it
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes, padding included."""
        return self.data.nbytes

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.data.shape[2] // PAIRED[self.dtype]

    @property
    def is_whole(self) -> bool:
        """Whether there is no padding."""
        return self.data.size == self.size

    def unpack(self) -> Float[Array, "*o i"]:
        return unpack(self)

    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        return gather_outputs(self, indices)


@jax.jit  # operation by operation it would be copied several times
def pack(weight: Float[Array, "*o i"]) -> Panels:
    """Packs a weight that `fits`."""
    inputs, pair = weight.shape[-1], PAIRED[weight.dtype]
    cut = split(weight)
    apart = cut.reshape(*cut.shape[:2], inputs // pair, pair)
    return Panels(data=apart.swapaxes(1, 2).reshape(-1, inputs // pair, cut.shape[1] * pair), shape=weight.shape)


def fits(weight: Any) -> bool:
    """Returns whether it is a float weight that can be packed."""
    if not isinstance(weight, jax.Array) or weight.dtype not in PAIRED or weight.size == 0:
        return False
    return weight.shape[-1] % PAIRED[weight.dtype] == 0


@jax.jit
def unpack(panels: Panels) -> Float[Array, "*o i"]:
    """Unpacks a weight."""
    apart = _by_output(panels).swapaxes(1, 2)
    return join(apart.reshape(*apart.shape[:2], -1), panels.shape)


def split(weight: Shaped[Array, "*o i"]) -> Shaped[Array, "s w i"]:
    """Divides the outputs into panels, with zeros at the end."""
    rows = weight.reshape(-1, weight.shape[-1])
    outputs = rows.shape[0]
    width = next((width for width in WIDTHS if outputs % width == 0), WIDTHS[0])
    return jnp.pad(rows, ((0, -outputs % width), (0, 0))).reshape(-1, width, weight.shape[-1])


def join(cut: Shaped[Array, "s w i"], shape: tuple[int, ...]) -> Shaped[Array, "*o i"]:
    """Joins panels to a weight of some shape; the inputs may differ."""
    outputs = math.prod(shape[:-1])
    return cut.reshape(-1, cut.shape[-1])[:outputs].reshape(*shape[:-1], -1)


def gather_outputs(panels: Panels, indices: Int[Array, "*n"]) -> Float[Array, "*n i"]:
    """Returns the rows of a weight `[out, in]` by index."""
    apart = _by_output(panels)
    width = apart.shape[2]
    return gather(apart, indices // width, indices % width).reshape(*indices.shape, -1)


def _by_output(panels: Panels) -> Float[Array, "s i w p"]:
    """Returns `[s, in / p, w, p]`."""
    return panels.data.reshape(*panels.data.shape[:2], -1, PAIRED[panels.dtype])
