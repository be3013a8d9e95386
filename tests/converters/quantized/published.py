"""Small folders of quantized models as libraries publish them, made by loops to be checked against the rules."""

import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from eagle_jax.converters import config_from_hf, llama, load_target, names
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import is_matrix
from eagle_jax.ops.quantized import QuantArray, dense
from tests.converters import folders

HIDDEN, INTERMEDIATE, VOCAB = 64, 96, 32
ENTRIES: dict[str, Any] = folders.ENTRIES | {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
}
DOWN = "model.layers.0.mlp.down_proj"  # its 96 inputs are no multiple of 64
OUTPUT = "lm_head"
EMBEDDING = "model.embed_tokens"


class Published(NamedTuple):
    """One quantized weight.

    Attributes:
        tensors: what the file has, by the end of the name.
        dense: the weight that they stand for, float32 `[out, in]`, computed by the format's rule.
    """

    tensors: dict[str, np.ndarray]
    dense: np.ndarray


Publish = Callable[[np.random.Generator, int, int], Published]  # of outputs and inputs


class Folder(NamedTuple):
    """A model folder, and the dense weights of its quantized modules."""

    path: pathlib.Path
    dense: dict[str, np.ndarray]


def write(
    path: pathlib.Path,
    publish: Publish,
    stated: Mapping[str, Any],
    *,
    floats: Sequence[str] = (EMBEDDING, OUTPUT),
    key: str = "quantization_config",
    more: Mapping[str, np.ndarray] | None = None,
    **entries: Any,
) -> Folder:
    """Writes a target whose matrices are quantized but for those of the modules `floats`."""
    path.mkdir(exist_ok=True)
    config = config_from_hf(ENTRIES | entries)
    tensors: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    for where, slot in names.slots(llama.rules(config), llama.shapes(config)).items():
        for name in slot.keys:
            module = name.removesuffix(".weight")
            if module in floats or not (is_matrix(where) or module == EMBEDDING):
                tensors[name] = (rng.standard_normal(slot.shape) / 8).astype(np.float16)
                continue
            published = publish(rng, *slot.shape)
            weights[module] = published.dense
            tensors |= {f"{module}.{end}": value for end, value in published.tensors.items()}
    save(path, tensors | dict(more or {}))
    state(path, stated, key=key, **entries)
    return Folder(path, weights)


def state(path: pathlib.Path, stated: Mapping[str, Any] | None, *, key: str = "quantization_config", **entries: Any):
    """Writes `config.json`."""
    whole = ENTRIES | entries | ({} if stated is None else {key: dict(stated)})
    (path / "config.json").write_text(json.dumps(whole))


def save(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    save_file({name: np.array(value, order="C") for name, value in tensors.items()}, path / "model.safetensors")


def loaded(folder: Folder, **options: Any) -> LM:
    return load_target(folder.path, "float32", **options)


def weights_of(lm: LM) -> Iterator[tuple[str, Any]]:
    """Weights by their modules, those of a stack one by one."""
    for slot in names.slots(llama.rules(lm.config), lm.params).values():
        for i, key in enumerate(slot.keys):
            one = functools.partial(lambda x, i: x[i], i=i)
            yield key.removesuffix(".weight"), jax.tree.map(one, slot.leaf) if slot.stacked else slot.leaf


def check(folder: Folder, **options: Any) -> dict[str, QuantArray]:
    """Every quantized weight stands for the numbers of the rule, bit for bit; returns them."""
    quantized = {}
    for module, weight in weights_of(loaded(folder, **options)):
        if module in folder.dense:
            np.testing.assert_array_equal(np.asarray(dense(weight)), folder.dense[module], err_msg=module)
            quantized[module] = weight
        else:
            assert not isinstance(weight, QuantArray), module
    assert quantized.keys() == folder.dense.keys() and quantized
    return quantized


def depends_on(folder: Folder, end: str, change: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether `DOWN` stands for other numbers than the rule's once its tensor of this end is another."""
    tensors, name = tensors_of(folder), f"{DOWN}.{end}"
    save(folder.path, tensors | {name: change(tensors[name])})
    weight = dict(weights_of(loaded(folder)))[DOWN]
    return not np.array_equal(np.asarray(dense(weight)), folder.dense[DOWN])


def changed(folder: Folder, change: Callable[[dict[str, np.ndarray]], None]) -> Folder:
    """The folder with other tensors."""
    tensors = tensors_of(folder)
    change(tensors)
    save(folder.path, tensors)
    return folder


def tensors_of(folder: Folder) -> dict[str, np.ndarray]:
    """The tensors of the file. `safetensors` itself cannot read floats of one byte into numpy."""
    octets = (folder.path / "model.safetensors").read_bytes()
    size = int.from_bytes(octets[:8], "little")
    dtypes = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "BF16": ml_dtypes.bfloat16, "F16": "<f2", "F32": "<f4", "F64": "<f8"}
    dtypes |= {"U8": "u1", "I8": "i1", "I32": "<i4", "U32": "<u4", "I64": "<i8", "F8_E8M0": ml_dtypes.float8_e8m0fnu}
    tensors = {}
    for name, entry in json.loads(octets[8 : 8 + size]).items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(octets[8 + size + begin : 8 + size + end], dtypes[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).copy()
    return tensors


def words(numbers: Sequence[int], bits: int) -> np.ndarray:
    """Words of 32 bits, the first number in the lowest bits; the last word is filled with zeros."""
    whole = sum(int(number) << (bits * i) for i, number in enumerate(numbers))
    count = -(-len(numbers) * bits // 32)
    return np.frombuffer(whole.to_bytes(4 * count, "little"), "<i4")


def rows_of_words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Words along the last axis."""
    return np.stack([words(row, bits) for row in numbers])


def by_group(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(q - z) * s in float32, each number by itself: `[out, in]` with zeros and scales `[out, groups]`."""
    weight = np.empty(codes.shape, np.float32)
    for o, i in np.ndindex(*codes.shape):
        group = groups[i]
        weight[o, i] = np.float32(int(codes[o, i]) - int(zeros[o, group])) * np.float32(scales[o, group])
    return weight


def drawn_scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float16) -> np.ndarray:
    """Scales of either sign that use all bits of their dtype."""
    return (rng.standard_normal(shape) / 16).astype(dtype)
