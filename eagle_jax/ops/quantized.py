"""Quantized weights: codes of 4 or 8 bits, and a scale, at times a minimum, for each output or group of its inputs.

    weight [out, in]   =   levels[codes] [out, in]  *  scales [out, groups]  +  minima [out, groups]

each scale and minimum over in / groups inputs. A code stands for itself or for an entry of a table (`LEVELS`), an 8-bit
float among them. Integer zero points are minima of -zero point * scale: with scales of 16 bits that is exact in
float32.

Only weights are quantized; the CPU backend also quantizes the rows that it multiplies with quantized weights.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from eagle_jax.struct import pytree, static

INT, E4M3 = "int", "e4m3"
# Tables of 16 levels. The last bit pattern of e2m1 is -6; IQ4_NL is llama.cpp's, and NF4 bitsandbytes'.
LEVELS: dict[str, tuple[float, ...]] = {
    "e2m1": (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6),
    "iq4_nl": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "nf4": (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
}


@dataclasses.dataclass(frozen=True)
class QuantType:
    """The type of a quantized weight.

    Attributes:
        bits: number of bits of a code, 8 or 4.
        group: inputs that share a scale; None is all of an output.
        levels: what codes are: "int" integers, "e4m3" floats of 8 bits, or indices into a table of `LEVELS`.
        has_minima: whether there are minima; integers are unsigned then.
        is_ordered: whether the inputs are in another order than in the model.
    """

    bits: int
    group: int | None = None
    levels: str = INT
    has_minima: bool = False
    is_ordered: bool = False

    def __str__(self) -> str:
        name = f"{self.levels}{self.bits}" if self.levels == INT else self.levels
        over = "an output" if self.group is None else f"{self.group} inputs"
        return f"{name}, a scale{' and a minimum' if self.has_minima else ''} for each {over}"

    @property
    def code_dtype(self) -> np.dtype:
        """Dtype of codes on this platform."""
        return self.code_dtype_on(jax.default_backend())

    def code_dtype_on(self, platform: str) -> np.dtype:
        """Returns the dtype of codes on a platform, such as "cpu" or "tpu"."""
        if self.levels == E4M3:
            return np.dtype(jnp.float8_e4m3fn)
        signed = self.levels == INT and not self.has_minima
        if self.bits == 8 or platform == "cpu":
            return np.dtype(jnp.int8 if signed else jnp.uint8)
        return np.dtype(jnp.int4 if signed else jnp.uint4)

    def groups(self, inputs: int) -> int:
        """Returns the number of scales of each output."""
        return 1 if self.group is None else inputs // self.group

    def over(self, inputs: int) -> "QuantType":
        """Returns the same, with None for a group of all inputs."""
        return dataclasses.replace(self, group=None) if self.group == inputs else self


@pytree
class QuantArray:
    """A quantized weight in place of a float one. Its axes may be moved, split and stacked as the weight's may.

    Attributes:
        codes: integers in the weight's shape. 4-bit codes take half a byte; on CPUs, where XLA multiplies half bytes
            slowly, a whole byte unless they are packed for the CPU backend.
        scales: as `codes`, but with one entry for each group along the input axis; float32, or float16 if the file
            has that.
        bits: 8 or 4.
        dtype: dtype of the products, and of the weight before quantization.
        minima: minima in the shape of `scales`, or None.
        order: input of the model that each input of the codes is, or None; a stack has one for each weight.
        levels: see `QuantType`.
    """

    codes: Num[Array, "..."]
    scales: Float[Array, "..."]
    bits: int = static()
    dtype: np.dtype = static()
    minima: Float[Array, "..."] | None = None
    order: Int[Array, "..."] | None = None
    levels: str = static(default=INT)

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
    def quant_type(self) -> QuantType:
        """The type of the stored weight, `[.., in]`."""
        group, more = self.shape[-1] // self.scales.shape[-1], (self.minima is not None, self.order is not None)
        return QuantType(self.bits, group, self.levels, *more).over(self.shape[-1])


def quantize(weight: Float[Array, "*o i"], quant_type: QuantType, dtype: DTypeLike) -> QuantArray:
    """Quantizes a weight to the nearest codes, ties to even.

    Without minima the value of largest magnitude of a group becomes the lowest code, -128 or -8, exactly: its scale
    takes that value's sign. Compared with scales that map it to +7 or -7 the error at 4 bits is a tenth less.

    With minima a group's range, widened to contain 0, is divided evenly, and the minimum is -zero * scale for an
    integer zero among the codes, as files have it. Scales have so few significant bits that minima, codes * scales and
    their sums are exact in float32: (code - zero) * scale is the same number.

    Args:
        quant_type: integers; its group divides the inputs.
        dtype: dtype of products with the result.

    Raises:
        ValueError: a type that is read from files only.
    """
    if quant_type.levels != INT or quant_type.is_ordered:
        raise ValueError(f"weights are not quantized to {quant_type}; expected integers in the model's order")
    parts = _quantized(weight, quant_type, quant_type.code_dtype)
    return QuantArray(**parts, bits=quant_type.bits, dtype=np.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _quantized(weight: Float[Array, "*o i"], quant_type: QuantType, stored: np.dtype) -> dict[str, Array]:
    """Computes codes, scales and minima."""
    parts = weight.astype(jnp.float32).reshape(*weight.shape[:-1], quant_type.groups(weight.shape[-1]), -1)
    highest, deepest = jnp.max(parts, axis=-1, keepdims=True), jnp.min(parts, axis=-1, keepdims=True)
    levels = 2**quant_type.bits
    if quant_type.has_minima:
        scales = (jnp.maximum(highest, 0) - jnp.minimum(deepest, 0)) / (levels - 1)
        scales = jax.lax.reduce_precision(scales, exponent_bits=8, mantissa_bits=23 - quant_type.bits)
        lowest = 0
    else:
        lowest = -(levels // 2)
        scales = jnp.where(highest > -deepest, highest, deepest) / lowest
    scales = jnp.where(scales == 0, 1.0, scales)
    zeros = jnp.clip(jnp.round(-deepest / scales), 0, levels - 1) if quant_type.has_minima else jnp.zeros_like(scales)
    codes = jnp.clip(jnp.round(parts / scales) + zeros, lowest, lowest + levels - 1)
    parts_by_name = {"codes": codes.reshape(weight.shape).astype(stored), "scales": jnp.squeeze(scales, -1)}
    return parts_by_name | {"minima": jnp.squeeze(-zeros * scales, -1)} if quant_type.has_minima else parts_by_name


def dense(weight: Array | QuantArray) -> Array:
    """Dequantizes a weight as stored, `[.., in]`, to its dtype; returns a float weight unchanged."""
    if not isinstance(weight, QuantArray):
        return weight
    values = dequantized(weight)
    if weight.order is None:
        return values
    rank = jnp.expand_dims(jnp.argsort(weight.order, axis=-1), tuple(range(weight.order.ndim - 1, weight.ndim - 1)))
    return jnp.take_along_axis(values, rank, axis=-1)


def map_parts(function: Callable[..., Array], *weights: Any) -> Any:
    """Applies `function` to float weights, or to the parts of quantized ones that have their axes, not to the order."""
    if not isinstance(weights[0], QuantArray):
        return function(*weights)
    ordered = weights[0].order
    bare = [dataclasses.replace(weight, order=None) for weight in weights]
    return dataclasses.replace(jax.tree.map(function, *bare), order=ordered)


def rows_of(table: Array | QuantArray, indices: Int[Array, "n"]) -> Array:
    """Returns the rows of a weight `[out, in]`, in its dtype."""
    return dense(map_parts(lambda part: part[indices], table))


def dequantized(weight: QuantArray) -> Array:
    """Returns the values in the order of the codes, the input axis anywhere. Computed in float32 and rounded once."""
    grouped, single = [], []
    for size, groups in zip(weight.shape, weight.scales.shape, strict=True):
        grouped += [size] if size == groups else [groups, size // groups]
        single += [size] if size == groups else [groups, 1]
    exact = jnp.bfloat16 if weight.scales.dtype == jnp.bfloat16 else jnp.float32  # the former on GPUs: see `packing`
    values = levels_of(weight).astype(exact).reshape(grouped) * weight.scales.astype(exact).reshape(single)
    if weight.minima is not None:
        values = values + weight.minima.astype(exact).reshape(single)
    return values.reshape(weight.shape).astype(weight.dtype)


def levels_of(weight: QuantArray) -> Array:
    """Returns the values of codes: the codes, or entries of their table in float32."""
    if weight.levels not in LEVELS:
        return weight.codes
    return jnp.asarray(LEVELS[weight.levels], jnp.float32)[weight.codes.astype(jnp.int32)]


@jax.jit
def bound(weight: QuantArray) -> Array:
    """Returns the largest magnitude that numbers of such scales and minima may have, in the weight's dtype."""
    integers = 2**weight.bits if weight.minima is not None else 2 ** (weight.bits - 1)
    levels = LEVELS.get(weight.levels, (448 if weight.levels == E4M3 else integers,))
    largest = jnp.max(jnp.abs(weight.scales.astype(jnp.float32))) * max(map(abs, levels))
    if weight.minima is not None:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(weight.minima.astype(jnp.float32))))
    return largest.astype(weight.dtype)


def zeros(quant_type: QuantType, shape: tuple[int, ...], dtype: DTypeLike) -> QuantArray:
    """Makes a weight `[.., in]` as accelerators hold it, with codes, scales and minima of 0, for its shapes."""
    grid = jnp.zeros((*shape[:-1], quant_type.groups(shape[-1])), jnp.float32)
    return QuantArray(
        codes=jnp.zeros(shape, quant_type.code_dtype_on("tpu")),
        scales=grid,
        bits=quant_type.bits,
        dtype=np.dtype(dtype),
        minima=grid if quant_type.has_minima else None,
        order=jnp.zeros(shape[-1:], jnp.int32) if quant_type.is_ordered else None,
        levels=quant_type.levels,
    )
