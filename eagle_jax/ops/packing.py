"""Memory layouts of weights for matrix products with few rows: leaf types that replace an array or a `QuantArray`.

Files, training and converters have weights as `[out, in]`. Before decoding, `pack` converts them to the fastest layout
of this device's backend. Leaves of every layout have the shape of the stored weight.
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

# With fewer inputs XLA:CPU, which repacks the right operand in every product, is faster with a transposed matrix. A
# bfloat16 product with 2,048 inputs takes 668 us as stored and 1,643 transposed (`benchmarks.kernels.ops products`).
MIN_INPUTS_AS_STORED = 768


class PackedWeight(abc.ABC):
    """A weight in the layout of a backend.

    Attributes:
        shape: shape of the stored weight, `[.., in]`.
        dtype: dtype of the weight before quantization.
        nbytes: size in bytes.
        is_quantized: whether the weight was packed from a `QuantArray`.
        hidden_rows: number of rows up to which a product is limited by reading the weight, and takes the same time.
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
        """Returns these rows of a weight `[out, in]`, dequantized to `dtype`."""

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


LEAVES = (QuantArray, PackedWeight, Transposed)  # pytree types that hold one weight


def pack(weight: Array | QuantArray, *, sharded: bool = False) -> Array | QuantArray | PackedWeight | Transposed:
    """Packs a weight in the layout whose products are fastest on this device.

    Args:
        weight: `[.., in]`.
        sharded: whether the weight is sharded over several devices.
    """
    packed = None if sharded else pack_for_backend(weight)
    return _for_xla(weight) if packed is None else packed


def pack_for_backend(weight: Array | QuantArray) -> PackedWeight | None:
    """Packs a weight in the layout of the first backend that can pack it; returns None if no backend can."""
    for name in candidates("linear", weight_shape(weight)):
        try:
            backend = importlib.import_module(BACKENDS[name])
        except ImportError:
            continue
        if (pack := getattr(backend, "pack", None)) is not None and (packed := pack(weight)) is not None:
            return packed
    return None


def unpack(weight: Any) -> Any:
    """Returns the stored weight, bit for bit except for group scales on GPUs, which `pack` rounds."""
    return weight.unpack() if isinstance(weight, PackedWeight | Transposed) else weight


def is_leaf(value: object) -> bool:
    """Returns whether a value is one weight; pass it as `is_leaf` to functions of `jax.tree`."""
    return isinstance(value, LEAVES)


def _for_xla(weight: Array | QuantArray) -> Array | QuantArray | Transposed:
    """Returns the weight in the layout that XLA multiplies fastest.

    On TPUs grouped weights are transposed, since the compiler then fuses their dequantization into the product: for one
    row it reads 0.63 bytes a weight, against 1.9 for `[out, in]` in groups of 32, and 10 in groups of 128. On GPUs they
    stay `[out, in]`, and symmetric integers get scales of the product's dtype: XLA transposes any other layout in every
    call and dequantizes it to memory, this one only in some versions (`benchmarks.compile_only.gpu_loop`).
    """
    platform = jax.default_backend()
    grouped = isinstance(weight, QuantArray) and weight.scales.shape[-1] > 1
    if platform == "gpu" and isinstance(weight, QuantArray) and grouped:
        if weight.levels != INT or weight.minima is not None or weight.scales.dtype != jnp.float32:
            return weight
        return dataclasses.replace(weight, scales=weight.scales.astype(weight.dtype))
    if grouped or (platform == "cpu" and not _is_faster_as_stored(weight)):
        return Transposed(jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), weight))
    return weight


def _is_faster_as_stored(weight: Array | QuantArray) -> bool:
    """Returns whether XLA:CPU is faster with `[out, in]`."""
    unquantized = not isinstance(weight, QuantArray) and weight.dtype in (jnp.bfloat16, jnp.float32)
    return unquantized and weight.shape[-1] >= MIN_INPUTS_AS_STORED
