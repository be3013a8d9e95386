"""A head's folder to another format: tensors are renamed, their bytes stay."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.config import Eagle3Config
from eagle_jax.converters import eagle, formats, names
from eagle_jax.converters.files import Weights
from eagle_jax.converters.formats import EMBEDDING
from eagle_jax.converters.head_writing import Verifier, entries_for
from eagle_jax.converters.hf_config import integer
from eagle_jax.converters.hub import read_config, resolve
from eagle_jax.converters.vocabulary import mapping_tensors
from eagle_jax.converters.writing import write_folder


def convert(
    source: str | pathlib.Path,
    folder: str | pathlib.Path,
    format: str,
    *,
    target: str | pathlib.Path | None = None,
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Writes the head in `source` to `folder` in another format.

    Args:
        source: folder or hub name of a head, in any of the formats.
        folder: where to write it; created if it is not there.
        format: `safeailab`, `sglang` or `speculators`.
        target: folder or hub name of the target, of which only `config.json` is read. `speculators` needs it, to name
            it; so does an EAGLE-3 head whose config names no tapped layers, for their default.
        changes: entries that take the place of those in the source's `config.json`.

    Raises:
        FileNotFoundError, FileExistsError: the source is not there, or the folder holds other weights.
        ValueError: no head, one that is not understood, one that the format's readers would misread, or no target
            where one is needed.
    """
    form, folder = formats.named(format), pathlib.Path(folder)
    if format == "speculators" and target is None:
        raise ValueError("a speculators config names the target, and none was given; give its folder or hub name")
    resolved = resolve(source)
    if folder.exists() and folder.resolve() == resolved.resolve():
        raise ValueError(f"{folder} is the head itself; give another folder to write to")
    facts = {} if target is None else read_config(target)
    taps = eagle.default_taps(integer(facts, "num_hidden_layers")) if facts else None
    weights = Weights(resolved)
    found = eagle.read_head(weights, taps, changes or {})
    if facts:
        _check_target(found, facts, target)
    entries = entries_for(format, found.config, found.dtype, _verifier(target, facts))

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        shapes = eagle.shapes(found.config)
        into = names.slots((form.eagle3 if found.spelling.eagle3 else form.eagle1).rules, shapes)
        for path, slot in names.slots(found.spelling.rules, shapes).items():
            for key, new in zip(slot.keys, into[path].keys, strict=True):
                yield new, weights.take(key)
        if found.vocabulary is not None:
            yield from mapping_tensors(found.vocabulary, found.config.layers.vocab_size)
        if not found.spelling.eagle3 and EMBEDDING in weights.info and format == "safeailab":
            yield EMBEDDING, weights.take(EMBEDDING)

    write_folder(folder, entries, tensors())


def _check_target(found: eagle.Checkpoint, facts: Mapping[str, Any], target: Any) -> None:
    config = found.config
    width = config.target_hidden_size if isinstance(config, Eagle3Config) else config.layers.hidden_size
    for name, ours in (("vocab_size", config.layers.vocab_size), ("hidden_size", width)):
        if integer(facts, name) != ours:
            raise ValueError(
                f"the head in {found.weights.folder} was made for a target of {name}={ours}; {target} has {facts[name]}"
            )


def _verifier(target: str | pathlib.Path | None, facts: Mapping[str, Any]) -> Verifier:
    if target is None:
        return Verifier()
    return Verifier(
        name=str(target),
        architectures=tuple(facts.get("architectures") or ()),
        max_position_embeddings=integer(facts, "max_position_embeddings", 1),
    )
