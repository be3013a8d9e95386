"""Writes model folders: to a temporary folder first, whose files are moved at the end, or not at all."""

import errno
import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.errors import listed
from eagle_jax.converters.files import WEIGHT_FILES
from eagle_jax.durable import name_path_in_errors

# Bytes in one file, as in transformers. Only one file's tensors are in host memory at a time.
SHARD_BYTES = 4 * 2**30

MODEL_FILE = "model.safetensors"


def write_folder(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, np.ndarray]],
    file: str = MODEL_FILE,
    extra_files: Iterable[pathlib.Path] = (),
) -> None:
    """Writes `config.json` and safetensors that transformers reads too; other files in `folder` stay.

    Args:
        file: name of the weight file; only `MODEL_FILE` is split if it is large.
        extra_files: files to copy to `folder`, such as a tokenizer's.

    Raises:
        FileExistsError: `folder` holds weights that these would not replace, or another file with the name of one of
            `extra_files`.
        OSError: writing failed, for example on a full disk; `folder` is unchanged.
        NotADirectoryError: `folder` is a file, or inside one.
    """
    folder = folder.resolve()  # a link may lead to another disk, and files cannot be moved between disks
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is a file; expected a folder to write the model to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_mount = folder.exists() and folder.stat().st_dev != folder.parent.stat().st_dev
    staged = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder if is_mount else folder.parent))
    try:
        with name_path_in_errors(folder):
            _write_weights(staged, tensors, file)
        for path in extra_files:
            _refuse_other_file(folder / path.name, path)
            shutil.copy(path, staged / path.name)
        text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
        (staged / "config.json").write_text(text, encoding="utf-8")
        for path in staged.glob("*.safetensors"):  # created readable by their owner only
            path.chmod((staged / "config.json").stat().st_mode)
        _refuse_other_weights(folder, {path.name for path in staged.iterdir()})
        folder.mkdir(exist_ok=True)
        for path in sorted(staged.iterdir()):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def refuse_model(folder: pathlib.Path) -> None:
    """Raises FileExistsError for a folder that holds a model."""
    present = [name for name in ("config.json", *WEIGHT_FILES) if (folder / name).exists()]
    if present:
        raise FileExistsError(f"{folder} holds a model already ({listed(present)}); give another folder to write to")


def _refuse_other_file(existing: pathlib.Path, new: pathlib.Path) -> None:
    if existing.exists() and not (existing.is_file() and existing.read_bytes() == new.read_bytes()):
        raise FileExistsError(f"{existing} is there already, and would be replaced; give another folder to write to")


def _write_weights(folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]], file: str) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    shards: list[list[str]] = []
    shard: dict[str, np.ndarray] = {}
    total = 0

    def close() -> None:
        # transformers requires the format in the metadata.
        try:
            save_file(shard, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        except SafetensorError as error:  # also for errors of the operating system
            raise OSError(errno.EIO, str(error)) from error
        shards.append(list(shard))
        shard.clear()

    for name, value in tensors:
        if shard and file == MODEL_FILE and sum(part.nbytes for part in shard.values()) + value.nbytes > SHARD_BYTES:
            close()
        shard[name] = value
        total += value.nbytes
    close()
    _name_shards(folder, shards, total, file)


def _name_shards(folder: pathlib.Path, shards: list[list[str]], total: int, file: str) -> None:
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / file)
        return
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards):
        part = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{i}").rename(folder / part)
        weight_map |= dict.fromkeys(names, part)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _refuse_other_weights(folder: pathlib.Path, new_names: set[str]) -> None:
    if not folder.is_dir():
        return
    patterns = ("model*.safetensors", "pytorch_model*.bin", *WEIGHT_FILES)
    others = sorted({path.name for pattern in patterns for path in folder.glob(pattern)} - new_names)
    if others:
        raise FileExistsError(
            f"{folder} holds other weights ({listed(others)}); give an empty folder, or remove them first"
        )
