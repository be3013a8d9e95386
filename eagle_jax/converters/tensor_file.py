"""The interface of weight files, the same for every format."""

import dataclasses
import pathlib
from typing import Protocol, runtime_checkable

import numpy as np

from eagle_jax.ops.quantized import QuantType

GGUF = ".gguf"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """The header of a tensor.

    Attributes:
        shape: shape as in PyTorch.
        dtype: `float32`, `bfloat16`, ..., or the type of a quantized weight's codes: `int4`, `float8_e4m3fn`, `nf4`.
        file: file that holds it.
        quant_type: type of a quantized weight, whose tensors are one entry under the name of the float weight.
        block_type: type of a GGUF tensor's blocks, and the type that they are converted to.
    """

    shape: tuple[int, ...]
    dtype: str
    file: pathlib.Path
    quant_type: QuantType | None = None
    block_type: str | None = None


@runtime_checkable
class TensorFile(Protocol):
    """A file of named tensors."""

    info: dict[str, TensorInfo]

    def take(self, name: str) -> np.ndarray:
        """Returns the tensor's values. Each can be taken once: files that are read whole free them then."""
        ...
