"""Quantizes a model folder, tensor by tensor: one file's tensors are in memory at a time."""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from eagle_jax.converters import llama, names, packed, quant_config
from eagle_jax.converters.describe import TARGET, UNKNOWN, describe
from eagle_jax.converters.files import Weights, is_gguf, open_file, read_json
from eagle_jax.converters.gguf.folder import convert_gguf
from eagle_jax.converters.heads import kinds
from eagle_jax.converters.hub.resolving import resolve
from eagle_jax.converters.writing import MODEL_FILE, refuse_model, write_folder
from eagle_jax.models.quant import Scheme, is_matrix, scheme_for_files, scheme_of
from eagle_jax.ops import quantized
from eagle_jax.ops.quantized import QuantType

# Files copied with the weights: tokenizer, chat template, generation settings, licence.
COPIED_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".md")


class _Table(NamedTuple):
    """The slots of a model's parameters by path, the name of its weight file, and names of further files with parts."""

    slots: dict[str, names.Slot]
    file: str
    side_files: tuple[str, ...] = ()


def quantize(source: str | pathlib.Path, folder: str | pathlib.Path, to: str, *, requantize: bool = False) -> None:
    """Writes the target or head in `source` to `folder` with quantized matrices, for `load`, vLLM and transformers.

    Weights are packed in the format of compressed-tensors, which `config.json` states. Everything else is copied. The
    new folder loads as the same model as `load(quantize=)` of the source. A folder whose weights are quantized to the
    same width already is copied, and this is logged.

    Args:
        source: folder or hub name of a target or a head, in any format, or a GGUF file.
        folder: folder to write to; created if needed.
        to: "int8", "int4" (groups of 32), "int4-128", "int4-asym" or "int4-128-asym"; see `load`.
        requantize: quantize weights again that are quantized to another width, as "requantize:" before `to` does.

    Raises:
        FileNotFoundError, FileExistsError: the source is missing, or the folder holds a model already.
        ValueError: no model, one that is quantized to another width, or groups that do not divide a matrix.
    """
    scheme, folder = scheme_of(to), pathlib.Path(folder)
    if scheme is None or scheme.is_floats:
        raise ValueError("nothing to quantize to; expected int8, int4, int4-128, int4-asym or int4-128-asym")
    if requantize:
        scheme = dataclasses.replace(scheme, requantizes=True)
    refuse_model(folder)
    with _as_folder(resolve(source), scheme) as weights:
        table = _table(weights)
        leaves = {path: slot.leaf for path, slot in table.slots.items()}
        file_scheme = scheme_for_files(scheme, names.quant_types(weights, table.slots), leaves, weights.folder)
        extra_files = [
            file
            for file in weights.folder.iterdir()
            if (file.suffix in COPIED_SUFFIXES or file.name in table.side_files)
            and file.name != "config.json"
            and not file.name.endswith(".index.json")
        ]
        entries = read_json(weights.folder / "config.json")
        if file_scheme is None:
            write_folder(folder, entries, _as_stored(weights), table.file, extra_files)
            return
        file_scheme.check(leaves)
        types = _types(table.slots, file_scheme)
        matrices = {key: types.get(key) for path, slot in table.slots.items() if is_matrix(path) for key in slot.keys}
        matrices |= _unread_matrices(weights, table)
        entries = quant_config.without_quantization(entries) | quant_config.matrices_entry(matrices)
        write_folder(folder, entries, _tensors(weights, types), table.file, extra_files)


@contextlib.contextmanager
def _as_folder(source: pathlib.Path, scheme: Scheme) -> Iterator[Weights]:
    """Yields the weights of a folder; a GGUF file is first converted to a temporary folder of floats.

    Raises:
        ValueError: the GGUF file is quantized and the scheme does not requantize.
    """
    if not is_gguf(source):
        yield Weights(source)
        return
    weights = Weights(source)
    slots = names.slots(llama.rules(config := llama.read_config(source)), llama.shapes(config))
    leaves = {path: slot.leaf for path, slot in slots.items()}
    if scheme_for_files(scheme, names.quant_types(weights, slots), leaves, source) is None:
        raise ValueError(
            f"{source} holds weights of that width already, in blocks that no folder has; load the file, whose numbers "
            "are kept, or requantize it"
        )
    with tempfile.TemporaryDirectory() as temporary:
        convert_gguf(source, pathlib.Path(temporary) / "model", dtype=llama.target_dtype(source))
        yield Weights(pathlib.Path(temporary) / "model")


def _types(slots: dict[str, names.Slot], scheme: Scheme) -> dict[str, QuantType]:
    """Returns the type of each tensor to quantize, by name."""
    types: dict[str, QuantType] = {}
    for path, slot in slots.items():
        if (quant_type := scheme.of(path)) is not None:
            types |= dict.fromkeys(slot.keys, quant_type.over(slot.shape[-1]))
    return types


def _unread_matrices(weights: Weights, table: _Table) -> dict[str, None]:
    """Returns the matrices of other parts of the files, such as an MTP layer, which stay floats."""
    read = {key for slot in table.slots.values() for key in slot.keys}
    others = (key for key, info in weights.info.items() if key not in read and len(info.shape) > 1)
    return dict.fromkeys(key for key in others if key.endswith(".weight"))


def _tensors(weights: Weights, types: dict[str, QuantType]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors to write: floats, and the tensors of quantized weights."""
    for key, info in weights.info.items():
        value = weights.take(key)
        if info.quant_type is not None:
            value = value.astype(names.stored_dtype(weights, key))
        if key in types:
            yield from packed.tensors(key, _quantized(value, types[key]), types[key].bits)
        else:
            yield key, value


def _as_stored(weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor of every file unchanged."""
    for path in weights.files:
        file = open_file(path)
        for name in file.info:
            yield name, file.take(name)


def _quantized(value: np.ndarray, quant_type: QuantType) -> packed.QuantizedTensor:
    floats = jnp.asarray(value.astype(np.float32) if value.dtype == np.float64 else value)
    return packed.of_array(quantized.quantize(floats, quant_type, "float32"))


def _table(weights: Weights) -> _Table:
    """Returns the table of a model of any kind."""
    description = describe(weights.folder)
    if description.kind == UNKNOWN or description.problem:
        raise ValueError(
            description.problem or f"{weights.folder} holds no model that is known; expected a target or a head"
        )
    if description.kind == TARGET:
        config = llama.read_config(weights.folder)
        llama.check_target(weights, config)
        if weights.is_divided:
            raise ValueError(
                f"files such as those of {weights.folder} hold several matrices in one tensor, or under names of a "
                "larger model, and quantized ones are not written so; load the folder with quantize=, which rounds it "
                "as it is read"
            )
        return _Table(names.slots(llama.rules(config), llama.shapes(config)), MODEL_FILE)
    checked = kinds.files_of(weights.info).check(weights, None)
    return _Table(checked.slots, checked.file, checked.side_files)
