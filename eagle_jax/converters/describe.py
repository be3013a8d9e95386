"""What a folder holds, told without reading a tensor."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters import eagle, llama
from eagle_jax.converters.files import Weights, read_json

TARGET = "Llama target"
EAGLE1 = "EAGLE-1/2 head"
EAGLE3 = "EAGLE-3 head"
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """A model folder, in words and numbers; every field is plain JSON.

    Attributes:
        kind: `Llama target`, `EAGLE-1/2 head`, `EAGLE-3 head` or `unknown`.
        problem: why it would not load, in one sentence; None if it would.
        parameters: numbers in all tensors together.
        tensors: how many there are.
        dtypes: numbers by dtype.
        files: bytes by weight file.
        config: the settings in use, or the plain `config.json` of what does not load.
    """

    folder: str
    kind: str
    problem: str | None
    parameters: int
    tensors: int
    dtypes: dict[str, int]
    files: dict[str, int]
    config: dict[str, Any]


def describe(folder: str | pathlib.Path) -> Description:
    """What a folder holds and whether it would load.

    Raises:
        FileNotFoundError, ValueError: no folder, no config, or weight files that are missing or damaged.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    folder = pathlib.Path(folder)
    weights = Weights(folder)
    entries = read_json(folder / "config.json")
    kind = _kind(weights)
    problem, config = _check(kind, weights, entries)
    by_dtype: collections.Counter[str] = collections.Counter()
    for info in weights.info.values():
        by_dtype[info.dtype] += math.prod(info.shape)
    return Description(
        folder=str(folder),
        kind=kind,
        problem=problem,
        parameters=by_dtype.total(),
        tensors=len(weights.info),
        dtypes=dict(by_dtype),
        files={path.name: path.stat().st_size for path in weights.files},
        config=config,
    )


def _kind(weights: Weights) -> str:
    if eagle.is_eagle3(weights.info):
        return EAGLE3
    if eagle.is_eagle1(weights.info):
        return EAGLE1
    return TARGET if llama.EMBEDDING in weights.info else UNKNOWN


def _check(kind: str, weights: Weights, entries: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Why the folder would not load, and its settings."""
    try:
        if kind == TARGET:
            config = llama.read_config(weights.folder)
            llama.check_target(weights, config)
            return None, _plain(config)
        return None, _plain(eagle.read_head_config(weights))
    except ValueError as error:
        return str(error), dict(entries)


def _plain(config: Any) -> dict[str, Any]:
    """A config as plain JSON has it: lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))
