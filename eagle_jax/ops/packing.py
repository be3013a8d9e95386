"""Memory layouts of weights for products of a few rows: leaf types that stand where an array or a `QuantArray` did.

In files, in training and in converters a weight is `[out, in]`. Before decoding `pack` lays it out as the backend of
this device reads it quickest. In every layout the leaf has the shape of the weight.
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

# Inputs below which XLA:CPU is quicker with a transposed matrix: it packs the right operand of every product anew. In
# bfloat16 with 2,048 inputs that takes 668 us as stored and 1,643 transposed (`benchmarks.kernels.ops products`).
TRANSPOSED_BELOW = 768


class PackedWeight(abc.ABC):
    """A weight in the layout of a backend.

    Attributes:
        shape: shape of the weight, `[.., in]`.
        dtype: dtype of the weight; of a quantized one, what it was quantized from.
        nbytes: size in bytes.
        is_quantized: whether it holds a `QuantArray`.
        hidden_rows: rows whose product takes about the time of one row, since reading the weight takes longer.
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
        """Returns the weight as stored, bit for bit."""

    @abc.abstractmethod
    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        """Returns the rows of a weight `[out, in]`, in its dtype."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@pytree
class Transposed:
    """A weight `[.., in]`, stored as `[in, ..]`.

    Attributes:
        data: `[in, ..]`.
    """

    data: Float[Array, "i ..."] | QuantArray

    @property
    def shape(self) -> tuple[int, ...]:
        first, *rest = self.data.shape
        return (*rest, first)

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in jax.tree.leaves(self.data))

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def unpack(self) -> Array | QuantArray:
        """Returns the weight as stored."""
        return jax.tree.map(lambda part: jnp.moveaxis(part, 0, -1), self.data)


LEAVES = (QuantArray, PackedWeight, Transposed)  # types that hold one weight and are no arrays


def pack(weight: Array | QuantArray, *, sharded: bool = False) -> Array | QuantArray | PackedWeight | Transposed:
    """Packs a weight in the layout whose products are fastest on this device.

    Args:
        weight: `[.., in]`.
        sharded: for a program over several devices.
    """
    packed = None if sharded else pack_for_backend(weight)
    return _for_xla(weight) if packed is None else packed


def pack_for_backend(weight: Array | QuantArray) -> PackedWeight | None:
    """Packs a weight in the layout of the first backend that packs it; None if none does."""
    for name in candidates("linear", weight_shape(weight)):
        try:
            backend = importlib.import_module(BACKENDS[name])
        except ImportError:
            continue
        if (pack := getattr(backend, "pack", None)) is not None and (packed := pack(weight)) is not None:
            return packed
    return None


def unpack(weight: Any) -> Any:
    """Returns the weight as stored, bit for bit but for scales of groups on GPUs."""
    return weight.unpack() if isinstance(weight, PackedWeight | Transposed) else weight


def is_leaf(value: object) -> bool:
    """Returns whether a value is one weight, as `is_leaf` of `jax.tree` functions over parameters."""
    return isinstance(value, LEAVES)


def _for_xla(weight: Array | QuantArray) -> Array | QuantArray | Transposed:
    """Returns the weight in the layout that XLA multiplies fastest.

    On TPUs a weight in groups is transposed, since only then does the compiler fuse its dequantization into the
    product: for one row it reads 0.63 bytes a weight, where it reads 1.9 of `[out, in]` in groups of 32 and 10 in
    groups of 128. On GPUs it stays `[out, in]`, symmetric integers with scales of the product's dtype: XLA transposes
    any other layout in every call and dequantizes it to memory, this one only in some versions
    (`benchmarks.compile_only.gpu_loop`). Other kinds keep the scales of their files.
    """
    platform = jax.default_backend()
    grouped = isinstance(weight, QuantArray) and weight.scales.shape[-1] > 1
    if platform == "gpu" and isinstance(weight, QuantArray) and grouped:
        if weight.levels != INT or weight.minima is not None or weight.scales.dtype != jnp.float32:
            return weight
        return dataclasses.replace(weight, scales=weight.scales.astype(weight.dtype))
    if grouped or (platform == "cpu" and not _is_quicker_as_stored(weight)):
        return Transposed(jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), weight))
    return weight


def _is_quicker_as_stored(weight: Array | QuantArray) -> bool:
    """Returns whether XLA:CPU is quicker with `[out, in]`."""
    unquantized = not isinstance(weight, QuantArray) and weight.dtype in (jnp.bfloat16, jnp.float32)
    return unquantized and weight.shape[-1] >= TRANSPOSED_BELOW
