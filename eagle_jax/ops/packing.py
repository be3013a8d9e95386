"""Memory layouts of weights for products with a few rows.

Files, training and converters store a weight as `[out, in]`. Before decoding `pack` replaces it, an array or a
`QuantArray`, with a `PackedWeight` or a `Transposed`, in the fastest layout for the backend of this device. They have
the shape of the weight.
"""

import abc
import dataclasses
import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.ops.choice.shapes import weight_shape
from eagle_jax.ops.dispatch import BACKENDS, candidates
from eagle_jax.ops.quantized import INT, QuantArray
from eagle_jax.struct import pytree

# XLA:CPU is faster with a transposed matrix if it has fewer inputs: in each product it packs the right operand. In
# bfloat16 with 2,048 inputs that takes 668 us as stored and 1,643 us transposed (`benchmarks.kernels.ops products`).
MIN_INPUTS_AS_STORED = 768


class PackedWeight(abc.ABC):
    """A weight in the layout of a backend.

    Attributes:
        shape: shape of the weight, `[.., in]`.
        dtype: dtype of the weight, before quantization if it is quantized.
        nbytes: size in bytes.
        is_quantized: whether `unpack` returns a `QuantArray`.
        hidden_rows: number of rows whose product takes no longer than reading the weight.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    is_quantized: bool

    @property
    @abc.abstractmethod
    def nbytes(self) -> int: ...

    @property
    @abc.abstractmethod
    def hidden_rows(self) -> int: ...

    @abc.abstractmethod
    def unpack(self) -> Array | QuantArray:
        """Returns the stored weight, bit for bit."""

    @abc.abstractmethod
    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        """Returns rows of a weight `[out, in]`, in its dtype."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@pytree
class Transposed:
    """A weight `[.., in]` whose `data` is `[in, ..]`."""

    data: Float[Array, "i ..."] | QuantArray

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[1:], self.data.shape[0])

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in jax.tree.leaves(self.data))

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def unpack(self) -> Array | QuantArray:
        return jax.tree.map(lambda part: jnp.moveaxis(part, 0, -1), self.data)


WEIGHT_TYPES = (QuantArray, PackedWeight, Transposed)  # types of one weight that are not arrays


def pack(weight: Array | QuantArray, *, sharded: bool = False) -> Array | QuantArray | PackedWeight | Transposed:
    """Packs a weight in the fastest layout for this device.

    Args:
        weight: `[.., in]`.
        sharded: whether the program runs on several devices.
    """
    packed = None if sharded else pack_for_backend(weight)
    return _for_xla(weight) if packed is None else packed


def pack_for_backend(weight: Array | QuantArray) -> PackedWeight | None:
    """Packs a weight in the layout of the first backend that supports it; returns None if no backend does."""
    for name in candidates("linear", weight_shape(weight)):
        try:
            backend = importlib.import_module(BACKENDS[name])
        except ImportError:
            continue
        if (pack := getattr(backend, "pack", None)) is not None and (packed := pack(weight)) is not None:
            return packed
    return None


def unpack(weight: Any) -> Any:
    """Returns the weight as stored: the same bits, except that GPUs round the scales of groups."""
    return weight.unpack() if isinstance(weight, PackedWeight | Transposed) else weight


def is_leaf(value: object) -> bool:
    """Returns whether a value is one weight: the `is_leaf` argument of `jax.tree` functions over parameters."""
    return isinstance(value, WEIGHT_TYPES)


def _for_xla(weight: Array | QuantArray) -> Array | QuantArray | Transposed:
    """Returns the weight in the layout that XLA multiplies fastest.

    On TPUs group-quantized weights are transposed, since only then does the compiler fuse dequantization into the
    product: for one row it reads 0.63 bytes per weight, and of `[out, in]` 1.9 with groups of 32 and 10 with groups of
    128. On GPUs they stay `[out, in]`, and symmetric integers get scales of the product's dtype: XLA transposes any
    other layout and dequantizes it to memory in every call, and this layout only in some versions
    (`benchmarks.compile_only.gpu_loop`). Other quantizations keep the scales of their files.
    """
    platform = jax.default_backend()
    has_groups = isinstance(weight, QuantArray) and weight.scales.shape[-1] > 1
    if platform == "gpu" and isinstance(weight, QuantArray) and has_groups:
        if weight.levels != INT or weight.minima is not None or weight.scales.dtype != jnp.float32:
            return weight
        return dataclasses.replace(weight, scales=weight.scales.astype(weight.dtype))
    if has_groups or (platform == "cpu" and not _is_faster_as_stored(weight)):
        return Transposed(jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), weight))
    return weight


def _is_faster_as_stored(weight: Array | QuantArray) -> bool:
    """Returns whether XLA:CPU is faster with `[out, in]` than with the transpose."""
    is_float = not isinstance(weight, QuantArray) and weight.dtype in (jnp.bfloat16, jnp.float32)
    return is_float and weight.shape[-1] >= MIN_INPUTS_AS_STORED
