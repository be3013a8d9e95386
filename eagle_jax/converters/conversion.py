"""A head's folder to another format: tensors are renamed, and their bytes stay unless floats are asked for."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters import names, quant_config
from eagle_jax.converters.files import Weights, read_entries
from eagle_jax.converters.heads import dflash, dflash_edges, eagle
from eagle_jax.converters.heads import eagle_formats as formats
from eagle_jax.converters.heads import kinds as heads
from eagle_jax.converters.heads.eagle_entries import Verifier, entries_for
from eagle_jax.converters.heads.eagle_formats import EMBEDDING
from eagle_jax.converters.heads.vocabulary import mapping_tensors
from eagle_jax.converters.hf.values import integer
from eagle_jax.converters.hub.pairs import CARRIED, at_hand, head_folder, known_pair, target_folder
from eagle_jax.converters.hub.resolving import read_config, resolve
from eagle_jax.converters.writing import refuse_model, write_folder
from eagle_jax.models.quant import is_matrix

TARGET_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")


def convert(
    source: str | pathlib.Path,
    folder: str | pathlib.Path,
    format: str,
    *,
    target: str | pathlib.Path | None = None,
    changes: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> None:
    """Writes the head in `source` to `folder` in another format.

    Args:
        source: folder or hub name of a head, in any of the formats, or the name of a published pair, for its head.
        folder: where to write it; made if it is not there.
        format: of an EAGLE head `safeailab`, `sglang` or `speculators`; of DFlash's `dflash` or `speculators`.
        target: folder or hub name of the target, or the name of a published pair; only `config.json` is read.
            `speculators` needs it, to name it; so does an EAGLE-3 head whose config names no tapped layers, for their
            default.
        changes: entries that take the place of those in the source's `config.json`.
        dtype: of all its floats; quantized weights become floats too, for readers that do not know their format. None:
            everything is written as it is stored.

    Raises:
        FileNotFoundError, FileExistsError: the source is not there, or the folder holds a model already.
        ValueError: no head, one that is not understood, one that the format's readers would misread, or no target
            where one is needed.
    """
    folder = pathlib.Path(folder)
    if format != heads.DFLASH:
        formats.named(format)
    if format == "speculators" and target is None:
        raise ValueError("a speculators config names the target, and none was given; give its folder or hub name")
    pair = known_pair(source)
    resolved = resolve(source) if pair is None else head_folder(pair)
    _check_places(resolved, folder, target)
    name, facts = _read_target(target)
    weights = Weights(resolved)
    kind = heads.kind_of(weights.info)
    if kind == heads.DFLASH:
        _convert_dflash(weights, folder, format, changes or {}, _verifier(name, facts), dtype)
        return
    if kind is not None:
        raise ValueError(
            f"{resolved} holds {kind} heads, which have no other format; expected an EAGLE head or one of DFlash"
        )
    if format == heads.DFLASH:
        raise ValueError(f"format {format!r} is one for DFlash heads; {resolved} holds an EAGLE head")
    form = formats.named(format)
    checkpoint = eagle.read_head(
        weights, eagle.default_taps(facts["num_hidden_layers"]) if facts else None, changes or {}
    )
    if facts:
        eagle.check_fit(checkpoint, *(facts[size] for size in TARGET_SIZES))
    entries = entries_for(format, checkpoint.config, dtype or checkpoint.dtype, _verifier(name, facts))
    shapes = eagle.shapes(checkpoint.config)
    into = names.slots((form.eagle3 if checkpoint.spelling.eagle3 else form.eagle1).rules, shapes)
    keys = [
        (path, key, new, into[path])
        for path, slot in names.slots(checkpoint.spelling.rules, shapes).items()
        for key, new in zip(slot.keys, into[path].keys, strict=True)
    ]
    if dtype is None:
        matrices = {new: weights.info[key].quant_type for path, key, new, _ in keys if is_matrix(path)}
        entries |= quant_config.entry(matrices)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for _, key, new, slot in keys:
            for name, value in _written(weights, key, new, dtype):
                yield name, value.reshape(slot.shape) if slot.ones else value
        if checkpoint.vocabulary is not None:
            yield from mapping_tensors(checkpoint.vocabulary, checkpoint.config.layers.vocab_size)
        if not checkpoint.spelling.eagle3 and EMBEDDING in weights.info and format == "safeailab":
            yield from _written(weights, EMBEDDING, EMBEDDING, dtype)

    write_folder(folder, entries, tensors())


def _convert_dflash(
    weights: Weights,
    folder: pathlib.Path,
    format: str,
    changes: Mapping[str, Any],
    verifier: Verifier,
    dtype: str | None,
) -> None:
    """Its tensors are called the same in both formats, but for older names; those of the target are left behind."""
    if format not in dflash.FORMATS:
        raise ValueError(
            f"format {format!r} is not one for a DFlash head; expected one of {', '.join(map(repr, dflash.FORMATS))}"
        )
    config, ids = dflash.read_head(weights, changes)
    shapes, stored = dflash.shapes(config), dflash_edges.stored(dflash.RULES, weights.info)
    into = names.slots(dflash.RULES, shapes)
    keys = [(path, slot.keys[0], into[path].keys[0]) for path, slot in names.slots(stored, shapes).items()]
    entries = dflash.entries_of(format, config, dtype or names.stored_dtype(weights, "fc.weight").name, verifier)
    if dtype is None:
        entries |= quant_config.entry({new: weights.info[key].quant_type for path, key, new in keys if is_matrix(path)})

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for _, key, new in keys:
            if key != dflash.MASK:
                yield from _written(weights, key, new, dtype)
        mask = dflash.mask_embedding(weights, config.layers.hidden_size)
        if mask is not None:
            yield dflash.MASK, mask if dtype is None else mask.astype(np.dtype(dtype))
        if ids is not None:
            yield from mapping_tensors(ids, config.layers.vocab_size)

    write_folder(folder, entries, tensors())


def _written(weights: Weights, key: str, new: str, dtype: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that a tensor of the source becomes, by their names: as it is stored, or as floats of a dtype."""
    if dtype is not None:
        yield new, weights.take(key).astype(np.dtype(dtype))
        return
    for part, value in weights.parts(key):
        yield new + part.removeprefix(key), value


def _check_places(source: pathlib.Path, folder: pathlib.Path, target: str | pathlib.Path | None) -> None:
    """Refuses before anything is read or fetched what would overwrite a model, or take the head for its target."""
    if target is not None and pathlib.Path(target).resolve() == source.resolve():
        raise ValueError(f"{target} is the head itself, and was given as its target; give the target's folder")
    refuse_model(folder)


def _read_target(target: str | pathlib.Path | None) -> tuple[str | None, dict[str, Any]]:
    """The target's folder or hub name, which a published pair's name stands for, and its config, sizes checked."""
    if target is None:
        return None, {}
    pair = known_pair(target)
    name = str(target) if pair is None else pair.target
    is_here = pair is not None and (at_hand(pair) or pair.name in CARRIED)  # or can be had from the registry
    facts = read_entries(target_folder(pair)) if pair is not None and is_here else read_config(name)
    try:
        for size in TARGET_SIZES:
            integer(facts, size)
    except ValueError as error:
        raise ValueError(f"the target {name}: {error}") from error
    return name, facts


def _verifier(name: str | None, facts: Mapping[str, Any]) -> Verifier:
    return Verifier(
        name=name,
        architectures=tuple(facts.get("architectures") or ()),
        max_position_embeddings=integer(facts, "max_position_embeddings", 1),
    )
