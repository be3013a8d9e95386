"""Scales of 8-bit weights: one for the tensor, one for each output, or one for each block of outputs and inputs."""

import dataclasses
import math

import numpy as np

from eagle_jax.converters.quantized.unpacking import floats
from eagle_jax.converters.tensor_file import TensorInfo


@dataclasses.dataclass(frozen=True)
class ScaleGrid:
    """Blocks `[outputs, inputs]` of a weight that share a scale; those at the edges may be smaller.

    Attributes:
        shape: shape of the weight.
    """

    shape: tuple[int, int]
    outputs: int
    inputs: int

    @property
    def group(self) -> int | None:
        """Inputs that share a scale as `QuantType` has them: the largest number that divides blocks and inputs.

        A last block that is cut short makes groups smaller than blocks, and repeats scales.
        """
        return None if self.inputs >= self.shape[1] else math.gcd(self.inputs, self.shape[1])

    def expand(self, scales: np.ndarray) -> np.ndarray:
        """Returns scales `[out, groups]` from the scales of blocks."""
        out, size = self.shape
        group = self.group or size
        blocks = floats(scales).reshape(-(-out // self.outputs), -(-size // self.inputs))
        rows, columns = np.arange(out) // self.outputs, np.arange(0, size, group) // self.inputs
        return blocks[rows[:, None], columns[None, :]]


def grid_of(name: str, weight: TensorInfo, scale: TensorInfo, block: tuple[int, int] | None) -> ScaleGrid:
    """Returns the grid that the scales of a weight make.

    Args:
        block: what the config states, if it does.

    Raises:
        ValueError: no grid that is known; names the tensor.
    """
    if len(weight.shape) != 2:
        raise ValueError(f"tensor {name} in {weight.file} has shape {list(weight.shape)}; expected [out, in]")
    out, size = weight.shape
    shape = scale.shape[::2] if len(scale.shape) == 4 else scale.shape  # ModelOpt has [o, 1, i, 1] for blocks
    if math.prod(shape) == 1:
        return ScaleGrid((out, size), out, size)
    if shape in ((out,), (out, 1)):
        return ScaleGrid((out, size), 1, size)
    if block is not None and shape == (-(-out // block[0]), -(-size // block[1])):
        return ScaleGrid((out, size), *block)
    if len(shape) == 2 and shape[0] == out and shape[1] and size % shape[1] == 0:
        return ScaleGrid((out, size), 1, size // shape[1])
    statement = "no block size" if block is None else f"blocks of {block[0]} x {block[1]}"
    raise ValueError(
        f"tensor {name} in {scale.file} has scales {list(scale.shape)} for a weight {list(weight.shape)}, and the "
        f"config states {statement}; expected one for the tensor, for each output, or for each block"
    )
