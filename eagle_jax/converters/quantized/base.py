"""Shared code for readers of quantized weights, which combine several tensors to one weight."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.ops.quantized import INT, QuantType

Take = Callable[[str], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """A quantized weight that is stored as several tensors.

    Attributes:
        info: shape, dtype and file of the weight.
        parts: names of the tensors.
        read: reads the weight, given a function that takes a tensor by its name.
        optional: names of further tensors without effect, which a model need not have.
    """

    info: TensorInfo
    parts: tuple[str, ...]
    read: Callable[[Take], QuantizedTensor]
    optional: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RawTensors:
    """The tensors of a folder as they are stored.

    Attributes:
        info: headers of all tensors, by name.
        peek: reads a small tensor, which can be taken again.
    """

    info: Mapping[str, TensorInfo]
    peek: Take

    def ending(self, suffix: str) -> Iterator[str]:
        """Returns the names that end with the suffix, without it."""
        return (name.removesuffix(suffix) for name in self.info if name.endswith(suffix))

    def part(self, name: str, owner: str, dtypes: tuple[str, ...], axes: tuple[int, ...] = (2,)) -> TensorInfo:
        """Returns the tensor `name`, which belongs to `owner`.

        Raises:
            ValueError: it is missing, or has another dtype or number of axes.
        """
        if name not in self.info:
            raise ValueError(f"{self.info[owner].file} has {owner} and no {name}; copy or download it again")
        info = self.info[name]
        if info.dtype not in dtypes or len(info.shape) not in axes:
            raise ValueError(
                f"tensor {name} in {info.file} is {info.dtype} {list(info.shape)}; expected {' or '.join(dtypes)} with "
                f"{' or '.join(map(str, axes))} axes"
            )
        return info


@runtime_checkable
class Format(Protocol):
    """A format that quantized weights are published in. Modules are such formats.

    Attributes:
        TITLE: what people call it.
    """

    TITLE: str

    def check(self, entries: Mapping[str, Any]) -> None:
        """Raises ValueError that names an unsupported entry of `config.json`."""
        ...

    def find(self, tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
        """Finds every quantized weight, by the name that it has in a folder of floats.

        Raises:
            ValueError: tensors that do not fit together; names them.
        """
        ...


def described(file: TensorInfo, shape: tuple[int, ...], quant_type: QuantType) -> TensorInfo:
    """Returns the header of a quantized weight, in the same file as the tensor `file`."""
    named = {INT: f"int{quant_type.bits}", "e4m3": "float8_e4m3fn", "e2m1": "float4_e2m1fn"}
    dtype = named.get(quant_type.levels, quant_type.levels)
    return TensorInfo(shape, dtype, file.file, quant_type.over(shape[-1]))


def group_of(name: str, info: TensorInfo, inputs: int, groups: int) -> int:
    """Returns the number of inputs that share a scale.

    Raises:
        ValueError: the number of groups does not divide the inputs.
    """
    if not groups or inputs % groups:
        raise ValueError(
            f"tensor {name} in {info.file} has scales for {groups} groups of {inputs} inputs; expected groups of one "
            "size: the file is damaged, or in a variant of its format that is not read"
        )
    return inputs // groups


def table(value: Any) -> Mapping[str, Any]:
    """Returns an entry of a config that should be a table; an empty one instead of anything else."""
    return value if isinstance(value, Mapping) else {}


def expect(entries: Mapping[str, Any], title: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ValueError for the first entry with a value that is not read; absent entries pass."""
    for key, values in allowed.items():
        if key in entries and entries[key] not in values:
            choices = ", ".join(repr(value) for value in values if value is not None) or "none"
            raise ValueError(
                f"{key}={entries[key]!r} of {title} is not read; expected {choices}: use another upload of the model"
            )
