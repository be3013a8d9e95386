"""Parts of tensors that hold several parameters."""

import dataclasses
from typing import Any

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.tensor_file import TensorInfo


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a tensor along one axis.

    Attributes:
        entries: indices of the part along `axis`.
        axis: negative axis of a matrix `[.., out, in]`.
        transposed: floats are stored as `[.., in, out]`.
        row: index in a stack of matrices; None is the whole stack, or a single matrix.
    """

    entries: slice
    axis: int
    transposed: bool
    row: int | None = None

    def info(self, tensor: TensorInfo) -> TensorInfo:
        """Returns the header of the part; a tensor that is too short gives a part that is too short."""
        shape = list(tensor.shape)
        if self.transposed and tensor.quant_type is None:
            shape[-2:] = shape[:-3:-1]
        if len(shape) >= -self.axis:
            shape[self.axis] = len(range(*self.entries.indices(shape[self.axis])))
        return dataclasses.replace(tensor, shape=tuple(shape[0 if self.row is None else 1 :]))

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """Returns the part of a float tensor."""
        return self._of(tensor.swapaxes(-1, -2) if self.transposed else tensor)

    def of_quantized(self, tensor: QuantizedTensor) -> QuantizedTensor:
        """Returns the part of a quantized weight; the input axis is never divided."""
        minima = None if tensor.minima is None else self._of(tensor.minima)
        return QuantizedTensor(self._of(tensor.codes), self._of(tensor.scales), minima, tensor.order)

    def _of(self, tensor: np.ndarray) -> np.ndarray:
        if self.row is not None:
            tensor = tensor[self.row]
        index: tuple[Any, ...] = (..., self.entries, *(slice(None),) * (-1 - self.axis))
        return tensor[index]


WHOLE = Part(slice(None), -1, False)  # the whole tensor, under another name
