"""A folder of floats to one of rounded weights, tensor by tensor: only one file's worth is in memory at a time."""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from eagle_jax.converters import eagle, heads, hydra, llama, medusa, names, packed, quant_config
from eagle_jax.converters.describe import EAGLE1, EAGLE3, TARGET, UNKNOWN, describe
from eagle_jax.converters.files import Weights, is_gguf, read_json
from eagle_jax.converters.hub import resolve
from eagle_jax.converters.writing import WHOLE, refuse_model, write_folder
from eagle_jax.models.quant import is_matrix, scheme_of
from eagle_jax.ops import quantized
from eagle_jax.ops.quantized import QuantType

# Of a model's folder, what goes with the weights: tokenizer, chat template, generation settings, licence.
BESIDE = (".json", ".jinja", ".model", ".txt", ".md")


class _Table(NamedTuple):
    """Where the parameters of a model lie in its files, by path, and what the file of another program is called."""

    slots: dict[str, names.Slot]
    file: str


def quantize(source: str | pathlib.Path, folder: str | pathlib.Path, to: str) -> None:
    """Writes the target or head in `source` to `folder` with rounded matrices; `load` reads it as any other.

    Weights lie as compressed-tensors packs them, and `config.json` says so, for vLLM and transformers. Everything else
    stays bit for bit. What `load(quantize=)` makes of the source, `load` makes of the folder.

    Args:
        source: folder or hub name of a target or a head, in any format.
        folder: where to write it; made if it is not there.
        to: "int8", "int4" (groups of 32), "int4-128"; see `load`.

    Raises:
        FileNotFoundError, FileExistsError: the source is not there, or the folder holds a model already.
        ValueError: no model, one that is rounded already, or groups that do not divide a matrix.
    """
    scheme, folder = scheme_of(to), pathlib.Path(folder)
    if scheme is None:
        raise ValueError("nothing to quantize to; expected int8, int4 or int4-128")
    refuse_model(folder)
    resolved = resolve(source)
    if is_gguf(resolved):
        raise ValueError(f"{resolved} is a GGUF file; make a folder of it first: eagle-jax convert {resolved} DST")
    weights = Weights(resolved)
    table = _table(weights)
    names.refuse_quantized(weights)
    scheme.check({path: slot.leaf for path, slot in table.slots.items()})
    matrices: dict[str, QuantType | None] = {}
    for path, slot in table.slots.items():
        if is_matrix(path):
            quant_type = scheme.of(path)
            matrices |= dict.fromkeys(slot.keys, None if quant_type is None else quant_type.over(slot.shape[-1]))

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for key in weights.info:
            quant_type = matrices.get(key)
            if quant_type is None:
                yield key, weights.take(key)
            else:
                yield from packed.tensors(key, _rounded(weights.take(key), quant_type), quant_type.bits)

    entries = read_json(weights.folder / "config.json")
    entries |= quant_config.entry(matrices)
    others = [
        file
        for file in weights.folder.iterdir()
        if file.suffix in BESIDE and file.name != "config.json" and not file.name.endswith(".index.json")
    ]
    write_folder(folder, entries, tensors(), table.file, others)


def _rounded(value: np.ndarray, quant_type: QuantType) -> packed.QuantizedTensor:
    quantized_weight = quantized.quantize(
        jnp.asarray(value.astype(np.float32) if value.dtype == np.float64 else value), quant_type, "float32"
    )
    return packed.QuantizedTensor(
        np.asarray(quantized_weight.codes).astype(np.int8), np.asarray(quantized_weight.scales)
    )


def _table(weights: Weights) -> _Table:
    """The table of a model of any kind."""
    described = describe(weights.folder)
    if described.kind == UNKNOWN or described.problem:
        raise ValueError(
            described.problem or f"{weights.folder} holds no model that is known; expected a target or a head"
        )
    if described.kind == TARGET:
        config = llama.read_config(weights.folder)
        return _Table(names.slots(llama.rules(config), llama.shapes(config)), WHOLE)
    if described.kind in (EAGLE1, EAGLE3):
        checkpoint = eagle.read_head(weights, (0, 1, 2), {})
        return _Table(names.slots(checkpoint.spelling.rules, eagle.shapes(checkpoint.config)), WHOLE)
    side_by_side = heads.read_heads(weights, None, {})
    file = medusa.FILE if heads.kind_of(weights.info) == heads.MEDUSA else hydra.FILE
    return _Table(names.slots(side_by_side.rules, heads.shapes(side_by_side.config)), file)
