"""Describes the contents of a model folder without reading its weights."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters import llama
from eagle_jax.converters.files import Weights, read_entries
from eagle_jax.converters.heads import kinds
from eagle_jax.converters.weight_kinds import weight_kinds
from eagle_jax.head_kinds import HEAD_KINDS

TARGET, UNKNOWN = "target", "unknown"
INSIDE_TARGETS = ("medusa", "hydra", "mtp")  # kinds whose tensors may lie in the folder of a whole model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """A model folder or GGUF file, in words and numbers; every field is plain JSON.

    Attributes:
        kind: `target`, `EAGLE-1/2 head`, `EAGLE-3 head`, `P-EAGLE head`, `DFlash head`, `DFlash 2 head`, `DSpark head`,
            `Medusa heads`, `Hydra heads` or `unknown`.
        format: `safeailab or sglang`, `speculators`, `dflash`, `medusa` or `hydra` for a head; a target's `model_type`,
            if stated.
        problem: why the folder would not load, in one sentence; None if it would.
        parameters: number of parameters.
        tensors: number of tensors.
        dtypes: number of parameters by dtype; for a GGUF file by block type and the type it is converted to.
        kinds: for quantized files, how each kind of tensor is stored and loaded.
        files: bytes by weight file.
        config: the settings in use, or the entries of `config.json` if the folder would not load.
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
    """Describes the contents of a folder or GGUF file, and whether it would load.

    Raises:
        FileNotFoundError, ValueError: folder, config or weight files are missing or damaged.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    folder = pathlib.Path(folder)
    weights = Weights(folder)
    entries = read_entries(folder)
    kind, tensors = _kind(weights), len(weights.info)
    problem, head_kind, config = _check(kind, weights, entries)
    by_dtype: collections.Counter[str] = collections.Counter()
    for info in weights.info.values():
        by_dtype[info.block_type or info.dtype] += math.prod(info.shape)
    return Description(
        folder=str(folder),
        kind=HEAD_KINDS[head_kind].title if head_kind in HEAD_KINDS else head_kind,
        format=_format(kind, entries),
        problem=problem,
        parameters=by_dtype.total(),
        tensors=tensors,
        dtypes=dict(by_dtype),
        kinds=weight_kinds(weights.info),
        files={path.name: path.stat().st_size for path in weights.files},
        config=config,
    )


def _format(kind: str, entries: Mapping[str, Any]) -> str | None:
    if kind in HEAD_KINDS:
        return HEAD_KINDS[kind].get("files").format_of(entries)
    family = entries.get("model_type")
    return family if kind == TARGET and isinstance(family, str) else None


def _kind(weights: Weights) -> str:
    """Returns `target`, a key of `HEAD_KINDS` or `unknown`, by names and shapes of the tensors, even if some lack."""
    if llama.is_base_model(weights.info):
        return TARGET
    try:
        kind = kinds.kind_of(weights.info)
    except ValueError:  # names of two formats; `_check` decides
        return UNKNOWN
    if kind is None or kind in INSIDE_TARGETS:
        return TARGET if llama.EMBEDDING in weights.info else kind if kind in ("medusa", "hydra") else UNKNOWN
    return kind


def _check(kind: str, weights: Weights, entries: Mapping[str, Any]) -> tuple[str | None, str, dict[str, Any]]:
    """Returns why the folder would not load (None if it would), its kind by the config, and its settings."""
    try:
        if kind == TARGET:
            config = llama.read_config(weights.folder)
            llama.check_target(weights, config)
            return None, kind, _plain(config)
        checked = HEAD_KINDS["eagle1" if kind == UNKNOWN else kind].get("files").check(weights, None)
    except ValueError as error:
        return str(error), kind, dict(entries)
    return None, checked.config.kind, _plain(checked.config) | dict(checked.unstated)


def _plain(config: Any) -> dict[str, Any]:
    """Returns a config as plain JSON, with lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))
