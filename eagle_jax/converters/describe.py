"""What a folder holds, told without reading a weight."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters import llama
from eagle_jax.converters.files import Weights, read_entries
from eagle_jax.converters.heads import dflash, eagle
from eagle_jax.converters.heads import eagle_formats as formats
from eagle_jax.converters.heads import kinds as heads
from eagle_jax.converters.heads.entries import KIND
from eagle_jax.converters.weight_kinds import weight_kinds

TARGET = "target"
EAGLE1 = "EAGLE-1/2 head"
EAGLE3 = "EAGLE-3 head"
PEAGLE = "P-EAGLE head"
DFLASH = "DFlash head"
WITH_PARTS = {
    "markov": "DSpark head",
    "confidence": "DSpark head",
    "selector": "DFlash 2 head",
}  # a DFlash head with this setting
PARALLEL = {heads.MEDUSA: "Medusa heads", heads.HYDRA: "Hydra heads"}
UNKNOWN = "unknown"

# Shown in place of what follows from a target, which is not at hand.
TAPS_BY_DEFAULT = "2, N//2 and N - 3 of a target of N layers"
PREFIX = "a decoder layer as its target's"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """A model folder or GGUF file, in words and numbers; every field is plain JSON.

    Attributes:
        kind: `target`, `EAGLE-1/2 head`, `EAGLE-3 head`, `P-EAGLE head`, `DFlash head`, `DFlash 2 head`, `DSpark head`,
            `Medusa heads`, `Hydra heads` or `unknown`.
        format: of a head whose it is, `safeailab or sglang`, `speculators`, `dflash`, `medusa` or `hydra`; of a
            target its `model_type`, if stated.
        problem: why it would not load, in one sentence; None if it would.
        parameters: numbers in all tensors together.
        tensors: how many there are.
        dtypes: numbers by dtype; of a GGUF file's blocks by their type there and what becomes of it.
        kinds: of quantized weights how each kind of tensor is stored, and what is kept of it.
        files: bytes by weight file.
        config: the settings in use, or the plain `config.json` of what does not load.
    """

    folder: str
    kind: str
    format: str | None
    problem: str | None
    parameters: int
    tensors: int
    dtypes: dict[str, int]
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, int]
    config: dict[str, Any]


def describe(folder: str | pathlib.Path) -> Description:
    """What a folder or GGUF file holds and whether it would load.

    Raises:
        FileNotFoundError, ValueError: no folder, no config, or weight files that are missing or damaged.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    folder = pathlib.Path(folder)
    weights = Weights(folder)
    entries = read_entries(folder)
    kind, tensors = _kind(weights), len(weights.info)
    problem, config = _check(kind, weights, entries)
    by_dtype: collections.Counter[str] = collections.Counter()
    for info in weights.info.values():
        by_dtype[info.stored or info.dtype] += math.prod(info.shape)
    return Description(
        folder=str(folder),
        kind=_name(kind, config),
        format=_format(kind, entries, weights),
        problem=problem,
        parameters=by_dtype.total(),
        tensors=tensors,
        dtypes=dict(by_dtype),
        kinds=weight_kinds(weights.info),
        files={path.name: path.stat().st_size for path in weights.files},
        config=config,
    )


def _format(kind: str, entries: Mapping[str, Any], weights: Weights) -> str | None:
    if kind == DFLASH and KIND in entries:
        return "speculators"
    if kind == DFLASH or kind in PARALLEL.values():
        return heads.kind_of(weights.info)
    if kind in (EAGLE1, EAGLE3, PEAGLE):
        return "speculators" if KIND in entries else "safeailab or sglang"
    family = entries.get("model_type")
    return family if kind == TARGET and isinstance(family, str) else None


def _kind(weights: Weights) -> str:
    """What the names and shapes of tensors say, whether they make a whole model or not."""
    if dflash.holds(weights.info):
        return DFLASH
    if llama.is_bare(weights.info):
        return TARGET
    try:
        spelling = formats.spelling_of(weights.info)
    except ValueError:  # names of two formats; `_check` tells
        return UNKNOWN
    if spelling is not None:
        return EAGLE1 if not spelling.eagle3 else PEAGLE if formats.MASK in weights.info else EAGLE3
    if llama.EMBEDDING in weights.info:  # Medusa-2's heads lie in their target's folder
        return TARGET
    parallel = heads.kind_of(weights.info)
    return UNKNOWN if parallel is None else PARALLEL.get(parallel, UNKNOWN)


def _name(kind: str, config: Mapping[str, Any]) -> str:
    """What people call it: a DFlash head with further parts has a name of its own."""
    parts = [name for part, name in WITH_PARTS.items() if kind == DFLASH and config.get(part) is not None]
    return parts[0] if parts else kind


def _check(kind: str, weights: Weights, entries: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Why the folder would not load, and its settings."""
    try:
        if kind == TARGET:
            config = llama.read_config(weights.folder)
            llama.check_target(weights, config)
            return None, _plain(config)
        if kind == DFLASH:
            return None, _plain(dflash.read_head(weights, {})[0])
        if kind in PARALLEL.values():
            settings = _plain(heads.read_heads(weights, None, {}).config)
            return None, settings | ({"prefix": PREFIX} if settings.get("prefix") else {})
        checkpoint = eagle.read_head(weights, (0, 1, 2), {})
    except ValueError as error:
        return str(error), dict(entries)
    settings = _plain(checkpoint.config)
    if kind in (EAGLE3, PEAGLE) and not checkpoint.taps_stated:
        settings["taps"] = TAPS_BY_DEFAULT
    return None, settings


def _plain(config: Any) -> dict[str, Any]:
    """A config as plain JSON has it: lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))
