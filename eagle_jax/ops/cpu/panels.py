"""Packed weights of this backend: panels of 16 to 64 outputs, stored input by input."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32

from eagle_jax.ops.packing import PackedWeight
from eagle_jax.ops.quantized import QuantArray, QuantType
from eagle_jax.struct import pytree, static
from eagle_jax.workarounds import gather

WIDTHS = (64, 32, 16)  # outputs of a panel: the largest that divides a weight's outputs, else 64 with zeros behind
GROUP = 16  # elements of a vector
PAIRED = {jnp.dtype(jnp.float32): 1, jnp.dtype(jnp.bfloat16): 2}  # inputs of one output that are contiguous


@pytree
class Panels(PackedWeight):
    """A packed float weight `[.., in]`.

    Attributes:
        data: `[s, in, w]` of float32, or `[s, in / 2, 2 w]` of bfloat16, with two inputs of each output side by side.
            Outputs beyond those of the weight are zeros.
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


@pytree
class QuantizedPanels(PackedWeight):
    """A packed `QuantArray`.

    Attributes:
        words: `[s, in bits / 32, w]`, unsigned codes packed as `arithmetic.QuantizedArithmetic` says.
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
        """Size in bytes."""
        return self.words.nbytes + self.scales.nbytes

    @property
    def hidden_rows(self) -> int:
        """Fewer with rows of 16 bits but for AMX: their arithmetic is slower, and the weights are read in half the time
        or less.
        """
        from eagle_jax.ops.cpu.backend import row_bits
        from eagle_jax.ops.cpu.code import has_amx

        return 8 if has_amx() or row_bits(self.bits) == 8 else 5

    def unpack(self) -> QuantArray:
        return unpack(self)

    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        raise NotImplementedError("a quantized weight is no embedding table")


AnyPanels = Panels | QuantizedPanels


def fits(weight: Any) -> bool:
    """Whether a weight can be packed: a float one, or a quantized one in groups of a multiple of `GROUP` inputs."""
    if isinstance(weight, QuantArray):
        *_, inputs = weight.shape
        whole = weight.size > 0 and (inputs // weight.scales.shape[-1]) % GROUP == 0
        return (
            whole
            and weight.scales.dtype == jnp.float32
            and weight.quant_type == QuantType(weight.bits, weight.quant_type.group)
        )
    if not isinstance(weight, jax.Array) or weight.dtype not in PAIRED or weight.size == 0:
        return False
    return weight.shape[-1] % PAIRED[weight.dtype] == 0


@jax.jit  # operation by operation it would be copied several times
def pack(weight: Float[Array, "*o i"] | QuantArray) -> AnyPanels:
    """Packs a weight that `fits`."""
    if isinstance(weight, QuantArray):
        words, scales = _words(_split(weight.codes), weight.bits), _split(weight.scales).swapaxes(1, 2)
        return QuantizedPanels(words=words, scales=scales, shape=weight.shape, bits=weight.bits, dtype=weight.dtype)
    inputs, pair = weight.shape[-1], PAIRED[weight.dtype]
    cut = _split(weight)
    apart = cut.reshape(*cut.shape[:2], inputs // pair, pair)
    return Panels(data=apart.swapaxes(1, 2).reshape(-1, inputs // pair, cut.shape[1] * pair), shape=weight.shape)


@jax.jit
def unpack(panels: AnyPanels) -> Float[Array, "*o i"] | QuantArray:
    """Unpacks a weight."""
    if isinstance(panels, QuantizedPanels):
        codes, scales = _codes(panels), _join(panels.scales.swapaxes(1, 2), panels.shape)
        return QuantArray(codes=codes, scales=scales, bits=panels.bits, dtype=panels.dtype)
    apart = _by_output(panels).swapaxes(1, 2)
    return _join(apart.reshape(*apart.shape[:2], -1), panels.shape)


def _split(weight: Shaped[Array, "*o i"]) -> Shaped[Array, "s w i"]:
    """Divides the outputs into panels, with zeros at the end."""
    whole = weight.reshape(-1, weight.shape[-1])
    outputs = whole.shape[0]
    width = next((width for width in WIDTHS if outputs % width == 0), WIDTHS[0])
    return jnp.pad(whole, ((0, -outputs % width), (0, 0))).reshape(-1, width, weight.shape[-1])


def _join(cut: Shaped[Array, "s w i"], shape: tuple[int, ...]) -> Shaped[Array, "*o i"]:
    """Joins panels to a weight of some shape; the inputs may differ."""
    outputs = math.prod(shape[:-1])
    return cut.reshape(-1, cut.shape[-1])[:outputs].reshape(*shape[:-1], -1)


def _first_bits(bits: int) -> UInt32[np.ndarray, "1 1 1 n"]:
    """First bit of each input in its word."""
    inputs = np.arange(32 // bits, dtype=np.uint32)[None, None, None]
    return inputs // 2 * bits + inputs % 2 * 16


def _words(codes: Int[Array, "s w i"], bits: int) -> UInt32[Array, "s _ w"]:
    without_sign = (codes.astype(jnp.int32) + 2 ** (bits - 1)).astype(jnp.uint32)
    apart = without_sign.reshape(*codes.shape[:2], -1, 32 // bits)
    return jnp.sum(apart << _first_bits(bits), axis=-1, dtype=jnp.uint32).swapaxes(1, 2)


def _codes(panels: QuantizedPanels) -> Int[Array, "*o i"]:
    apart = panels.words.swapaxes(1, 2)[..., None] >> _first_bits(panels.bits) & np.uint32(2**panels.bits - 1)
    codes = (apart.astype(jnp.int32) - 2 ** (panels.bits - 1)).astype(QuantType(panels.bits).code_dtype)
    return _join(codes.reshape(*codes.shape[:2], -1), panels.shape)


def gather_outputs(panels: Panels, indices: Int[Array, "*n"]) -> Float[Array, "*n i"]:
    """Rows of a weight `[out, in]` by index."""
    apart = _by_output(panels)
    width = apart.shape[2]
    return gather(apart, indices // width, indices % width).reshape(*indices.shape, -1)


def _by_output(panels: Panels) -> Float[Array, "s i w p"]:
    """`[s, in / p, w, p]`."""
    return panels.data.reshape(*panels.data.shape[:2], -1, PAIRED[panels.dtype])
