"""Weights as this backend multiplies with them: panels of some outputs beside each other, input after input."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32

from eagle_jax.ops.packing import PackedWeight
from eagle_jax.ops.quantized import QuantArray, level_dtype
from eagle_jax.struct import pytree, static
from eagle_jax.workarounds import gather

WIDTHS = (64, 32, 16)  # outputs of a strip: the most that a weight's come apart into, or else 64 with zeros behind
GROUP = 16  # numbers that are computed together
PAIRED = {jnp.dtype(jnp.float32): 1, jnp.dtype(jnp.bfloat16): 2}  # inputs that lie beside each other


@pytree
class Panels(PackedWeight):
    """A weight `[.., in]` in another form.

    Attributes:
        data: of float32 `[s, in, w]`, of bfloat16 `[s, in / 2, 2 w]`: two inputs of each output, then the next two. The
            last of the `s w` outputs may be more than the weight has, and are zeros.
        shape: of the weight.
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
        """Bytes that it takes, zeros behind it included."""
        return self.data.nbytes

    @property
    def width(self) -> int:
        """Outputs of a strip."""
        return self.data.shape[2] // PAIRED[self.dtype]

    @property
    def is_whole(self) -> bool:
        """Whether no zeros are behind it."""
        return self.data.size == self.size

    def unpack(self) -> Float[Array, "*o i"]:
        return out_of_panels(self)

    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        return outputs_of(self, indices)


@pytree
class QuantizedPanels(PackedWeight):
    """A `QuantArray` in another form. Its axes stay where they are.

    Attributes:
        words: `[s, in bits / 32, w]`, whose levels lie as `numbers.Levels` has them, without a sign.
        scales: `[s, groups, w]`.
        shape, bits, dtype: of the weight.
    """

    words: UInt32[Array, "s _ w"]
    scales: Float[Array, "s g w"]
    shape: tuple[int, ...] = static()
    bits: int = static()
    dtype: np.dtype = static()

    is_quantized = True

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.words.nbytes + self.scales.nbytes

    @property
    def hidden_rows(self) -> int:
        """Fewer where rows of 16 bits meet weights that are read in half the time or less."""
        from eagle_jax.ops.cpu.backend import row_bits

        return 5 if row_bits() == 16 else 8

    def unpack(self) -> QuantArray:
        return out_of_panels(self)

    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        raise NotImplementedError("a quantized weight is no embedding table")


AnyPanels = Panels | QuantizedPanels


def fits(weight: Any) -> bool:
    """Whether a weight is multiplied with in panels: a float one, or a quantized one in groups of a multiple of `GROUP`
    inputs.
    """
    if isinstance(weight, QuantArray):
        *_, inputs = weight.shape
        whole = weight.size > 0 and (inputs // weight.scales.shape[-1]) % GROUP == 0
        return whole and weight.scales.dtype == jnp.float32
    if not isinstance(weight, jax.Array) or weight.dtype not in PAIRED or weight.size == 0:
        return False
    return weight.shape[-1] % PAIRED[weight.dtype] == 0


@jax.jit  # step by step it would be copied several times
def in_panels(weight: Float[Array, "*o i"] | QuantArray) -> AnyPanels:
    """A weight that fits, in panels."""
    if isinstance(weight, QuantArray):
        words, scales = _words(_cut(weight.levels), weight.bits), _cut(weight.scales).swapaxes(1, 2)
        return QuantizedPanels(words=words, scales=scales, shape=weight.shape, bits=weight.bits, dtype=weight.dtype)
    inputs, pair = weight.shape[-1], PAIRED[weight.dtype]
    cut = _cut(weight)
    apart = cut.reshape(*cut.shape[:2], inputs // pair, pair)
    return Panels(data=apart.swapaxes(1, 2).reshape(-1, inputs // pair, cut.shape[1] * pair), shape=weight.shape)


@jax.jit
def out_of_panels(panels: AnyPanels) -> Float[Array, "*o i"] | QuantArray:
    """The weight as it was."""
    if isinstance(panels, QuantizedPanels):
        levels, scales = _levels(panels), _whole(panels.scales.swapaxes(1, 2), panels.shape)
        return QuantArray(levels=levels, scales=scales, bits=panels.bits, dtype=panels.dtype)
    apart = _apart(panels).swapaxes(1, 2)
    return _whole(apart.reshape(*apart.shape[:2], -1), panels.shape)


def _cut(weight: Shaped[Array, "*o i"]) -> Shaped[Array, "s w i"]:
    """Panels of outputs, with zeros behind the last one."""
    whole = weight.reshape(-1, weight.shape[-1])
    outputs = whole.shape[0]
    width = next((width for width in WIDTHS if outputs % width == 0), WIDTHS[0])
    return jnp.pad(whole, ((0, -outputs % width), (0, 0))).reshape(-1, width, weight.shape[-1])


def _whole(cut: Shaped[Array, "s w i"], shape: tuple[int, ...]) -> Shaped[Array, "*o i"]:
    """A weight of some shape, but for its inputs."""
    outputs = math.prod(shape[:-1])
    return cut.reshape(-1, cut.shape[-1])[:outputs].reshape(*shape[:-1], -1)


def _places(bits: int) -> UInt32[np.ndarray, "1 1 1 n"]:
    """The first bit of each input in its word."""
    inputs = np.arange(32 // bits, dtype=np.uint32)[None, None, None]
    return inputs // 2 * bits + inputs % 2 * 16


def _words(levels: Int[Array, "s w i"], bits: int) -> UInt32[Array, "s _ w"]:
    without_sign = (levels.astype(jnp.int32) + 2 ** (bits - 1)).astype(jnp.uint32)
    apart = without_sign.reshape(*levels.shape[:2], -1, 32 // bits)
    return jnp.sum(apart << _places(bits), axis=-1, dtype=jnp.uint32).swapaxes(1, 2)


def _levels(panels: QuantizedPanels) -> Int[Array, "*o i"]:
    apart = panels.words.swapaxes(1, 2)[..., None] >> _places(panels.bits) & np.uint32(2**panels.bits - 1)
    levels = (apart.astype(jnp.int32) - 2 ** (panels.bits - 1)).astype(level_dtype(panels.bits))
    return _whole(levels.reshape(*levels.shape[:2], -1), panels.shape)


def outputs_of(panels: Panels, indices: Int[Array, "*n"]) -> Float[Array, "*n i"]:
    """Rows of a weight `[out, in]`, one for each index."""
    apart = _apart(panels)
    width = apart.shape[2]
    return gather(apart, indices // width, indices % width).reshape(*indices.shape, -1)


def _apart(panels: Panels) -> Float[Array, "s i w p"]:
    """`[s, in / p, w, p]`."""
    return panels.data.reshape(*panels.data.shape[:2], -1, PAIRED[panels.dtype])
