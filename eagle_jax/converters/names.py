"""Tensor names on disk and parameter paths in memory: one table per format, read in both directions.

Tables hold names only: shapes come from the models' parameters, which have the same shapes on disk.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.converters import packed
from eagle_jax.converters.errors import listed
from eagle_jax.converters.files import Weights, is_gguf
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.models.quant import flat, may_be_quantized
from eagle_jax.ops.quantized import QuantArray, QuantType

Params = dict[str, Any]
FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Name and path of one kind of parameter; `{i}` in both is a number, such as the layer's.

    A parameter with `{j}` in its key is stored as one tensor for each index of its first axis.

    Attributes:
        unit_axes: number of leading axes of length 1 that the tensor has on disk; files may have fewer.
    """

    key: str
    path: str
    unit_axes: int = 0


def linear(key: str, path: str) -> tuple[Rule, Rule]:
    """Returns the rules of a linear map: its weight and its optional bias."""
    return Rule(f"{key}.weight", f"{path}/weight"), Rule(f"{key}.bias", f"{path}/bias")


PROJECTIONS = tuple(f"self_attn.{x}_proj" for x in "qkvo") + tuple(f"mlp.{x}_proj" for x in ("gate", "up", "down"))
PROJECTIONS += tuple(f"self_attn.{x}" for x in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"))
NORMS = tuple(f"{x}_layernorm" for x in ("input", "post_attention", "pre_feedforward", "post_feedforward"))
NORMS += tuple(f"self_attn.{x}" for x in ("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm"))


def decoder_layer(prefix: str) -> tuple[Rule, ...]:
    """Returns the rules of Llama decoder layers, whose names on disk begin with `prefix` and `layers`."""
    return one_layer(f"{prefix}layers.{{i}}", "layers_{i}")


def one_layer(key: str, path: str) -> tuple[Rule, ...]:
    """Returns the rules of one Llama decoder layer, named `key` on disk and `path` in memory."""
    norms = (Rule(f"{key}.{name}.weight", f"{path}/{name.replace('.', '/')}/scale") for name in NORMS)
    maps = (linear(f"{key}.{name}", f"{path}/{name.replace('.', '/')}") for name in PROJECTIONS)
    return (*norms, *(rule for pair in maps for rule in pair))


@dataclasses.dataclass(frozen=True)
class Slot:
    """The tensor or tensors on disk that hold one parameter.

    Attributes:
        keys: names of the tensors.
        shape: shape of each tensor.
        stacked: whether the parameter is the stack of these tensors.
        leaf: the parameter, or its shape.
        unit_axes: number of leading axes of `shape` that files may leave out.
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    stacked: bool
    leaf: Any
    unit_axes: int = 0

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the tensor may have this shape in a file."""
        return any(shape == self.shape[start:] for start in range(self.unit_axes + 1))


def slots(rules: Iterable[Rule], params: Params) -> dict[str, Slot]:
    """Returns the slot on disk of every parameter of a model (arrays or their shapes), by path."""
    by_path = {rule.path: rule for rule in rules}
    by_slot = {}
    for path, leaf in flat(params):
        number = re.search(r"(?<=_)\d+(?=/)", path)
        pattern = path if number is None or path in by_path else f"{path[: number.start()]}{{i}}{path[number.end() :]}"
        if pattern not in by_path:
            raise ValueError(f"this format has no name for the parameter {path}; save the model in another one")
        rule = by_path[pattern]
        key = rule.key if number is None else rule.key.replace("{i}", number.group())
        by_slot[path] = _slot(key, leaf, rule.unit_axes)
    return by_slot


def expected(rules: Iterable[Rule], params: Params) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a model on disk, by name."""
    return {key: slot.shape for slot in slots(rules, params).values() for key in slot.keys}


def _slot(key: str, leaf: Any, unit_axes: int) -> Slot:
    shape = tuple(leaf.shape)
    if "{j}" not in key:
        return Slot((key,), (1,) * unit_axes + shape, stacked=False, leaf=leaf, unit_axes=unit_axes)
    return Slot(tuple(key.replace("{j}", str(j)) for j in range(shape[0])), shape[1:], stacked=True, leaf=leaf)


def quant_types(weights: Weights, by_path: Mapping[str, Slot]) -> dict[str, QuantType]:
    """Returns the types of the parameters that are quantized in the files, by path."""
    info_of = {path: weights.info[slot.keys[0]] for path, slot in by_path.items() if slot.keys[0] in weights.info}
    return {path: info.quant_type for path, info in info_of.items() if info.quant_type is not None}


def check(weights: Weights, rules: Iterable[Rule], shapes: Params, ignored: Iterable[str] = ()) -> None:
    """Checks the files against a model's parameters, by name, shape and dtype. Reads no tensor.

    Args:
        ignored: regular expressions of further names that the files may hold.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape, or not of a float dtype.
    """
    expected_shapes = expected(rules, shapes)
    missing = [key for key in expected_shapes if key not in weights.info]
    if missing:
        raise ValueError(f"{weights.folder} lacks {_count(missing)} that its config describes: {listed(missing)}")
    patterns = [re.compile(pattern) for pattern in ignored]
    accepted = expected_shapes.keys() | weights.optional
    unknown = [key for key in weights.info if key not in accepted and not any(p.fullmatch(key) for p in patterns)]
    if unknown:
        text = listed([f"{key} {list(weights.info[key].shape)}" for key in unknown])
        raise ValueError(f"{weights.folder} holds {_count(unknown)} that its config does not describe: {text}")
    for path, slot in slots(rules, shapes).items():
        for key in slot.keys:
            _check_tensor(key, weights.info[key], slot, may_be_quantized(path))
            if weights.info[key].quant_type != weights.info[slot.keys[0]].quant_type:
                raise ValueError(f"tensors {slot.keys[0]} and {key} are quantized differently; expected experts alike")


def tensors(rules: Iterable[Rule], params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors to write with their names, each made when it is yielded."""
    for slot in slots(rules, params).values():
        value = jax.tree.map(np.asarray, slot.leaf)
        for i, key in enumerate(slot.keys):
            part = jax.tree.map(lambda x, i=i: x[i], value) if slot.stacked else value
            if isinstance(part, QuantArray):
                yield from packed.tensors(key, packed.of_array(part), part.bits)
            else:
                yield key, np.ascontiguousarray(part).reshape(slot.shape)


def float_dtype(dtype: Any) -> jnp.dtype:
    """Returns JAX's dtype for `dtype`. Raises ValueError if it is not a dtype for weights."""
    try:
        result = jnp.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"dtype {dtype!r} is not known; expected float32, bfloat16 or float16") from error
    if result.name not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"dtype {result.name} is not one for weights; expected float32, bfloat16 or float16")
    return result


def stored_dtype(weights: Weights, key: str) -> jnp.dtype:
    """Returns the default dtype for loading: this tensor's; float64 becomes float32.

    If the tensor is quantized, the dtype is that of the first float tensor, or bfloat16 for GGUF files, which store
    float tensors in float32 whatever the model's dtype was.
    """
    if weights.info[key].quant_type is not None and is_gguf(weights.folder):
        return jnp.dtype("bfloat16")
    floats = (info.dtype for info in weights.info.values() if info.dtype in FLOATS)
    dtype = next(floats, "float32") if weights.info[key].quant_type is not None else weights.info[key].dtype
    return jnp.dtype("float32" if dtype == "float64" else dtype)


def _check_tensor(key: str, info: TensorInfo, slot: Slot, quantizable: bool) -> None:
    if not slot.fits(info.shape):
        raise ValueError(f"tensor {key} in {info.file} has shape {list(info.shape)}; expected {list(slot.shape)}")
    if info.dtype not in FLOATS and not (quantizable and info.quant_type is not None):
        raise ValueError(
            f"tensor {key} in {info.file} is {info.dtype}; expected {', '.join(FLOATS)}"
            f"{', or the tensors of a quantized weight' if quantizable else ''}"
        )


def _count(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' * (len(names) > 1)}"
