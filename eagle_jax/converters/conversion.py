"""Converts a head's folder to another format: tensors are renamed; their bytes stay unless a dtype is requested."""

import pathlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.files import Weights, read_entries
from eagle_jax.converters.heads import dflash, eagle, kinds
from eagle_jax.converters.heads.eagle_entries import Verifier
from eagle_jax.converters.heads.renaming import TARGET_SIZES
from eagle_jax.converters.hf.values import integer
from eagle_jax.converters.hub.pairs import CARRIED, at_hand, head_folder, known_pair, target_folder
from eagle_jax.converters.hub.resolving import read_config, resolve
from eagle_jax.converters.writing import refuse_model, write_folder
from eagle_jax.head_kinds import HEAD_KINDS

FORMATS = tuple(dict.fromkeys((*eagle.FORMATS, *dflash.FORMATS)))  # of the kinds that have several


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
        folder: folder to write to; created if needed.
        format: `safeailab`, `sglang` or `speculators` for an EAGLE head, `dflash` or `speculators` for a DFlash head.
        target: folder or hub name of the target, or the name of a published pair; only `config.json` is read.
            Required for `speculators`, which names it, and for an EAGLE-3 head whose config names no tapped layers.
        changes: entries that replace those in the source's `config.json`.
        dtype: dtype of all floats; quantized weights become floats too, for readers that do not support their format.
            None copies every tensor as it is stored.

    Raises:
        FileNotFoundError, FileExistsError: the source is missing, or the folder holds a model already.
        ValueError: no head, an unsupported one, one that the format cannot express, or a required target is missing.
    """
    folder = pathlib.Path(folder)
    if format not in FORMATS:
        raise ValueError(f"format {format!r} is not known; expected one of {', '.join(map(repr, FORMATS))}")
    if format == "speculators" and target is None:
        raise ValueError("a speculators config names the target, and none was given; give its folder or hub name")
    pair = known_pair(source)
    resolved = resolve(source) if pair is None else head_folder(pair)
    _check_places(resolved, folder, target)
    name, facts = _read_target(target)
    weights = Weights(resolved)
    kind = HEAD_KINDS[kinds.kind_of(weights.info) or "eagle1"]
    if not kind.convert:
        raise ValueError(f"{resolved} holds {kind.with_article}, in its only format; expected an EAGLE or DFlash head")
    formats = kind.get("files").FORMATS
    if format not in formats:
        expected = ", ".join(map(repr, formats))
        raise ValueError(
            f"{resolved} holds {kind.with_article}, and {format!r} is no format of it; expected one of {expected}"
        )
    entries, tensors = kind.get("convert")(weights, format, changes or {}, facts, _verifier(name, facts), dtype)
    write_folder(folder, entries, tensors)


def _check_places(source: pathlib.Path, folder: pathlib.Path, target: str | pathlib.Path | None) -> None:
    """Raises an error if `folder` holds a model or the target is the head, before anything is read or downloaded."""
    if target is not None and pathlib.Path(target).resolve() == source.resolve():
        raise ValueError(f"{target} is the head itself, and was given as its target; give the target's folder")
    refuse_model(folder)


def _read_target(target: str | pathlib.Path | None) -> tuple[str | None, dict[str, Any]]:
    """Returns the target's folder or hub name and its config; `target` may also be a published pair's name."""
    if target is None:
        return None, {}
    pair = known_pair(target)
    name = str(target) if pair is None else pair.target
    is_available = pair is not None and (at_hand(pair) or pair.name in CARRIED)  # or can be had from the registry
    facts = read_entries(target_folder(pair)) if pair is not None and is_available else read_config(name)
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
