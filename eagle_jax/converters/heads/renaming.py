"""Converts heads to another format: tensors are renamed; their bytes are copied unless a float dtype is requested."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from eagle_jax.converters import names, quant_config
from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads import dflash, dflash_edges, eagle, eagle_formats
from eagle_jax.converters.heads.eagle_entries import Verifier, entries_for
from eagle_jax.converters.heads.eagle_formats import EMBEDDING
from eagle_jax.converters.heads.vocabulary import mapping_tensors
from eagle_jax.models.quant import is_matrix

TARGET_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")  # keys of `facts`

Renamed = tuple[dict[str, Any], Iterator[tuple[str, np.ndarray]]]  # a `config.json`, and tensors by name


class _Tensor(NamedTuple):
    """A parameter's path, its tensor's name in the source and in the new file, and its slot in the new file."""

    path: str
    key: str
    new: str
    slot: names.Slot


def eagle_head(
    weights: Weights,
    format: str,
    changes: Mapping[str, Any],
    facts: Mapping[str, Any],
    verifier: Verifier,
    dtype: str | None,
) -> Renamed:
    """Converts an EAGLE head to another format.

    Args:
        facts: the target's `config.json`; empty without a target.
        dtype: dtype of all floats; None copies every tensor as it is stored.

    Raises:
        ValueError: the head is not supported, does not fit the target, or cannot be expressed in the format.
    """
    layout = eagle_formats.format_named(format)
    taps = eagle.default_taps(facts["num_hidden_layers"]) if facts else None
    checkpoint = eagle.read_head(weights, taps, changes)
    if facts:
        eagle.check_fit(checkpoint, *(facts[size] for size in TARGET_SIZES))
    new_rules = (layout.eagle3 if checkpoint.spelling.eagle3 else layout.eagle1).rules
    renamed = _renamed(checkpoint.spelling.rules, new_rules, eagle.shapes(checkpoint.config))
    entries = entries_for(format, checkpoint.config, dtype or checkpoint.dtype, verifier)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        yield from _tensors(weights, renamed, dtype)
        if checkpoint.vocabulary is not None:
            yield from mapping_tensors(checkpoint.vocabulary, checkpoint.config.layers.vocab_size)
        if not checkpoint.spelling.eagle3 and EMBEDDING in weights.info and format == "safeailab":
            yield from _written(weights, EMBEDDING, EMBEDDING, dtype)

    return entries | _quantized(weights, renamed, dtype), tensors()


def dflash_head(
    weights: Weights,
    format: str,
    changes: Mapping[str, Any],
    facts: Mapping[str, Any],
    verifier: Verifier,
    dtype: str | None,
) -> Renamed:
    """Converts a DFlash head to another format, as `eagle_head` does.

    Tensors have the same names in both formats, except in older files; the target's tensors are left out.
    """
    config, ids = dflash.read_head(weights, changes)
    rules = dflash_edges.rules_for(dflash.RULES, weights.info)
    renamed = [tensor for tensor in _renamed(rules, dflash.RULES, dflash.shapes(config)) if tensor.key != dflash.MASK]
    entries = dflash.entries_of(format, config, dtype or names.stored_dtype(weights, "fc.weight").name, verifier)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        yield from _tensors(weights, renamed, dtype)
        mask = dflash.mask_embedding(weights, config.layers.hidden_size)
        if mask is not None:
            yield dflash.MASK, mask if dtype is None else mask.astype(np.dtype(dtype))
        if ids is not None:
            yield from mapping_tensors(ids, config.layers.vocab_size)

    return entries | _quantized(weights, renamed, dtype), tensors()


def _renamed(rules: Iterable[names.Rule], new_rules: Iterable[names.Rule], shapes: names.Params) -> list[_Tensor]:
    slots = names.slots(new_rules, shapes)
    return [
        _Tensor(path, key, new, slots[path])
        for path, slot in names.slots(rules, shapes).items()
        for key, new in zip(slot.keys, slots[path].keys, strict=True)
    ]


def _quantized(weights: Weights, renamed: list[_Tensor], dtype: str | None) -> dict[str, Any]:
    """Returns the `config.json` entries for weights that stay quantized."""
    if dtype is not None:
        return {}
    matrices = (tensor for tensor in renamed if is_matrix(tensor.path))
    return quant_config.matrices_entry({tensor.new: weights.info[tensor.key].quant_type for tensor in matrices})


def _tensors(weights: Weights, renamed: list[_Tensor], dtype: str | None) -> Iterator[tuple[str, np.ndarray]]:
    for tensor in renamed:
        for name, value in _written(weights, tensor.key, tensor.new, dtype):
            yield name, value.reshape(tensor.slot.shape) if tensor.slot.unit_axes else value


def _written(weights: Weights, key: str, new: str, dtype: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors written for one source tensor, with their names: as stored, or as floats of `dtype`."""
    if dtype is not None:
        yield new, weights.take(key).astype(np.dtype(dtype))
        return
    for part, value in weights.parts(key):
        yield new + part.removeprefix(key), value
