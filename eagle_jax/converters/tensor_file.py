"""Files of tensors: what readers need of any format."""

import dataclasses
import pathlib
from typing import Protocol, runtime_checkable

import numpy as np

from eagle_jax.ops.quantized import QuantType

GGUF = ".gguf"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor without reading it.

    Attributes:
        shape: PyTorch's.
        dtype: `float32`, `bfloat16`, ..., or what the codes of a quantized weight are: `int4`, `float8_e4m3fn`, `nf4`.
        file: where it is.
        quant_type: of a quantized weight, which lies in several tensors and is one here, by the name it has as floats.
        stored: of blocks in a GGUF file, their type there and what becomes of it.
    """

    shape: tuple[int, ...]
    dtype: str
    file: pathlib.Path
    quant_type: QuantType | None = None
    stored: str | None = None


@runtime_checkable
class TensorFile(Protocol):
    """One file of named tensors."""

    info: dict[str, TensorInfo]

    def take(self, name: str) -> np.ndarray:
        """Returns the tensor's values.

        Each may be taken once: a file that had to be read whole frees what was taken.
        """
        ...
