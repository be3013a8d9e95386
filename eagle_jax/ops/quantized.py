"""Weights quantized to 8 or 4 bits: small integers, and a scale for each output or for each group of its inputs.

    weight [out, in]   ~   codes [out, in]  *  scales [out, groups], each over in / groups inputs

Only weights are quantized; the CPU backend also quantizes the rows that it multiplies with quantized weights. The value
of largest magnitude of a group becomes the lowest code, -128 or -8, exactly: its scale takes that value's sign.
Compared with scales that map it to +7 or -7 the error at 4 bits is a tenth less.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.struct import pytree, static


@pytree
class QuantArray:
    """A quantized weight in the place of a float one. Its axes may be moved, split and stacked as the weight's may.

    Attributes:
        codes: integers, of the weight's shape. Those of 4 bits take half a byte, but a whole byte on CPUs, where XLA
            multiplies half bytes slowly; packed for the CPU backend they take half a byte.
        scales: of the weight's shape, but with one entry for each group along the input axis.
        bits: 8 or 4.
        dtype: of the products, and of the weight before quantization.
    """

    codes: Int[Array, "..."]
    scales: Float[Array, "..."]
    bits: int = static()
    dtype: np.dtype = static()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    @property
    def size(self) -> int:
        return self.codes.size

    @property
    def rounding(self) -> "Rounding":
        """How a weight as stored, `[.., in]`, was quantized."""
        return Rounding(self.bits, self.shape[-1] // self.scales.shape[-1]).over(self.shape[-1])


@dataclasses.dataclass(frozen=True)
class Rounding:
    """Bits of the codes, and inputs that share a scale: a `group`, or all of an output's (None)."""

    bits: int
    group: int | None = None

    def groups(self, inputs: int) -> int:
        """Number of scales of each output."""
        return 1 if self.group is None else inputs // self.group

    def over(self, inputs: int) -> "Rounding":
        """The same, with None for a group of all inputs."""
        return Rounding(self.bits) if self.group == inputs else self


def code_dtype(bits: int) -> np.dtype:
    """Dtype of codes on this platform."""
    return np.dtype(jnp.int8 if bits == 8 or jax.default_backend() == "cpu" else jnp.int4)


def quantize(weight: Float[Array, "*o i"], rounding: Rounding, dtype: DTypeLike) -> QuantArray:
    """Quantizes a weight to the nearest codes, ties to even.

    Args:
        rounding: its group divides the inputs.
        dtype: of products with the result.
    """
    codes, scales = _rounded(weight, rounding, code_dtype(rounding.bits))
    return QuantArray(codes=codes, scales=scales, bits=rounding.bits, dtype=np.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _rounded(
    weight: Float[Array, "*o i"], rounding: Rounding, stored: np.dtype
) -> tuple[Int[Array, "*o i"], Float[Array, "*o g"]]:
    """Codes and scales."""
    lowest = -(2 ** (rounding.bits - 1))
    parts = weight.astype(jnp.float32).reshape(*weight.shape[:-1], rounding.groups(weight.shape[-1]), -1)
    highest, deepest = jnp.max(parts, axis=-1, keepdims=True), jnp.min(parts, axis=-1, keepdims=True)
    scales = jnp.where(highest > -deepest, highest, deepest) / lowest
    scales = jnp.where(scales == 0, 1.0, scales)
    codes = jnp.clip(jnp.round(parts / scales), lowest, -lowest - 1).reshape(weight.shape)
    return codes.astype(stored), jnp.squeeze(scales, -1)


def dense(weight: Array | QuantArray) -> Array:
    """Dequantizes a weight, to its dtype; returns a float weight unchanged."""
    if not isinstance(weight, QuantArray):
        return weight
    grouped, single = [], []
    for size, groups in zip(weight.shape, weight.scales.shape, strict=True):
        grouped += [size] if size == groups else [groups, size // groups]
        single += [size] if size == groups else [groups, 1]
    codes = weight.codes.astype(weight.scales.dtype).reshape(grouped)
    return (codes * weight.scales.reshape(single)).reshape(weight.shape).astype(weight.dtype)
