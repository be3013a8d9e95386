"""The target's features of the text on disk, computed once instead of in every update.

    index.json      identity of text and target, taps and dtype of the features
    00000.npy       rows 0, 1, .. as `[rows, n, f]`, stored as unsigned integers (.npy does not support bfloat16)
    00001.npy       the next rows

A file gets its name when it is complete, so an interrupted run continues with the missing files.
"""

import dataclasses
import functools
import json
import shutil
import time
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jaxtyping import Array, Float, Int, UInt

from eagle_jax.checks import check_same_settings
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.durable import PART, atomic_write
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA, Sharding, from_first_process, to_host, traced_over, wait_for_others
from eagle_jax.sharding.placing import is_key_or_value, layer_of
from eagle_jax.training.config import TrainConfig
from eagle_jax.training.data import Rows
from eagle_jax.training.events import Observe, Storing
from eagle_jax.training.features import hidden_states
from eagle_jax.training.update import on_devices
from eagle_jax.workarounds import exact_reduction_options

FILE_BYTES = 1 << 28  # about the size of a file
INDEX = "index.json"
STALE_SECONDS = 600.0  # temporary files that are older were left by a crash


@dataclasses.dataclass(frozen=True)
class FeatureFiles:
    """Features of rows of text in a folder; `files[numbers]` reads rows by number.

    Attributes:
        shape: number of rows, tokens per row, features per token.
        rows: rows per file; the last file may have fewer.
    """

    folder: Path
    shape: tuple[int, int, int]
    dtype: np.dtype
    rows: int

    def __getitem__(self, numbers: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r n f"]:
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for index, number in enumerate(numbers.tolist()):
            out[index] = self._file(number // self.rows)[number % self.rows]
        return out

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return self._bytes(self.shape[0])

    @property
    def missing(self) -> list[int]:
        """Numbers of the missing files."""
        return [number for number in self._numbers if not self._path(number).exists()]

    def check(self) -> None:
        """Raises ValueError if an existing file is damaged, by its header and length."""
        for number in self._numbers:
            if self._path(number).exists():
                self._file(number)

    def missing_bytes(self) -> int:
        return sum(self._bytes(len(self.rows_of(number))) for number in self.missing)

    def rows_of(self, number: int) -> range:
        """Returns the rows of a file."""
        return range(number * self.rows, min((number + 1) * self.rows, self.shape[0]))

    def write(self, number: int, values: Float[np.ndarray, "r n f"]) -> None:
        """Writes a file atomically. Raises OSError if the disk is full or the folder cannot be written."""
        try:
            with atomic_write(self._path(number)) as file:  # two runs may write to one folder
                np.save(file, values.astype(self.dtype, copy=False).view(f"u{self.dtype.itemsize}"))
        except OSError as error:
            raise OSError(f"the features could not be written to {self.folder}: {error.strerror or error}") from error

    @property
    def _numbers(self) -> range:
        return range(-(-self.shape[0] // self.rows))

    def _file(self, number: int) -> np.ndarray:
        path, shape = self._path(number), (len(self.rows_of(number)), *self.shape[1:])
        try:
            bits = np.load(path, mmap_mode="r")
        except (ValueError, EOFError) as error:  # truncated or empty
            raise ValueError(f"{path} is damaged ({error}); remove it, and the next start computes it again") from None
        if (bits.shape, bits.dtype) != (shape, np.dtype(f"u{self.dtype.itemsize}")):
            raise ValueError(
                f"{path} holds {bits.dtype}{list(bits.shape)}, expected u{self.dtype.itemsize}{list(shape)}; remove "
                "it, and the next start computes it again"
            )
        return bits.view(self.dtype)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.npy"

    def _bytes(self, rows: int) -> int:
        return rows * self.shape[1] * self.shape[2] * self.dtype.itemsize


def store(
    config: TrainConfig,
    target: LM,
    rows: Rows,
    taps: tuple[int, ...],
    observe: Observe,
    *,
    sharding: Sharding | None = None,
    sizes: LlamaConfig | None = None,
) -> FeatureFiles:
    """Computes the features of all rows that are missing in `config.features.folder`.

    The required disk space is reported before anything is written.

    Args:
        taps: taps of the head.
        sizes: the target's stored sizes, if sharding replicates its key/value heads.

    Raises:
        ValueError: the folder has features of another text, target or head, or damaged files.
        OSError: the disk is too full, or the folder cannot be written.
    """
    files = _files(config, target, rows, taps)
    index = {
        "text": zlib.crc32(rows.tokens.tobytes()),
        "shape": list(files.shape),
        "target": digest(target, sizes or target.config),
        "taps": list(taps),
        "dtype": files.dtype.name,
        "rows": files.rows,
    }
    missing = _claim_folder(files, index)
    files.check()
    needed, free = files.missing_bytes(), shutil.disk_usage(files.folder).free
    observe(Storing(files.folder, 0, len(missing), files.bytes, needed, free))
    if needed > free:
        raise OSError(
            f"the features take {_gigabytes(needed)} more ({files.shape[0]} rows of {files.shape[1]} tokens, "
            f"{files.shape[2]} numbers each in {files.dtype.name}) and {files.folder} has {_gigabytes(free)} of room; "
            "give another features.folder, fewer conversations, or none to compute them in each update"
        )
    for done, number in enumerate(missing, start=1):
        values = _compute_features(
            target, rows.tokens[np.array(files.rows_of(number))], config.batch, taps, files.dtype, sharding
        )
        if jax.process_index() == 0:
            files.write(number, values)
        observe(Storing(files.folder, done, len(missing), files.bytes, needed, free))
    if jax.process_count() > 1:
        wait_for_others("stored")
    return files


def digest(target: LM, sizes: LlamaConfig) -> int:
    """Returns a checksum of the target's weights that does not depend on the sharding.

    Args:
        sizes: the target's stored sizes; sharding may replicate its key/value heads.
    """

    def hash_weight(path: Any, weight: Array) -> UInt[Array, ""]:
        layer_config, target_layer = (layer_of(_path_name(path), config) for config in (sizes, target.config))
        copies = target_layer.num_key_value_heads // layer_config.num_key_value_heads
        if copies > 1 and is_key_or_value(_path_name(path), sizes.qk_norm_over == "projection"):
            weight = weight.reshape(-1, copies, layer_config.head_dim, *weight.shape[1:])[:, 0]
        return _hash_of_bits(weight)

    parts = jax.jit(lambda params: jax.tree_util.tree_map_with_path(hash_weight, params))(target.params)
    named = ((_path_name(path), int(part)) for path, part in jax.tree_util.tree_leaves_with_path(parts))
    return zlib.crc32("".join(map(str, (repr(sizes), *named))).encode())


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _hash_of_bits(values: Array) -> UInt[Array, ""]:
    """Returns a sum, independent of the order, of bits hashed with their positions (murmur3's finalizer)."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        values = jax.lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))
    place = jax.lax.iota(jnp.uint32, values.size).reshape(values.shape)
    mixed = values.astype(jnp.uint32) + place * jnp.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> jnp.uint32(shift))) * jnp.uint32(factor)
    return jnp.sum(mixed ^ (mixed >> jnp.uint32(16)), dtype=jnp.uint32)


def _files(config: TrainConfig, target: LM, rows: Rows, taps: tuple[int, ...]) -> FeatureFiles:
    folder = config.features.folder
    assert folder is not None, "the caller checks it"
    dtype = np.dtype(target.activations if config.features.dtype is None else jnp.dtype(config.features.dtype))
    width = (1 + len(taps)) * target.config.hidden_size
    batch = config.batch * rows.tokens.shape[1] * width * dtype.itemsize
    shape = (len(rows), rows.tokens.shape[1], width)
    return FeatureFiles(Path(folder), shape, dtype, config.batch * max(1, FILE_BYTES // batch))


def _claim_folder(files: FeatureFiles, index: dict[str, Any]) -> list[int]:
    """Checks or writes the folder's index, removes stale temporary files, and returns the missing files."""
    index_path = files.folder / INDEX
    files.folder.mkdir(parents=True, exist_ok=True)
    stored_index = _read_index(index_path) if index_path.exists() else index
    check_same_settings(files.folder, stored_index, index, "name another features.folder, or remove it", index)
    missing = files.missing
    for part in files.folder.glob(f"*{PART}"):  # temporary files
        if time.time() - part.stat().st_mtime > STALE_SECONDS:
            part.unlink(missing_ok=True)
    if jax.process_count() > 1:
        flags = np.isin(np.arange(-(-files.shape[0] // files.rows)), missing)
        missing = np.flatnonzero(from_first_process(flags)).tolist()
    if jax.process_index() == 0:
        with atomic_write(index_path) as file:
            file.write(f"{json.dumps(index)}\n".encode())
    return missing


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads(path.read_bytes())
        if isinstance(index, dict):
            return index
        reason = f"a {type(index).__name__}"
    except ValueError as error:
        reason = str(error)
    raise ValueError(
        f"{path} is damaged ({reason}), so the text and target of its features are unknown; remove {path.parent}, and "
        "they are computed again, or name another features.folder"
    )


def _compute_features(
    target: LM,
    tokens: Int[np.ndarray, "r n"],
    batch: int,
    taps: tuple[int, ...],
    dtype: np.dtype,
    sharding: Sharding | None,
) -> Float[np.ndarray, "r n f"]:
    """Computes features with an update's batch size, so that they are bitwise the same."""
    parts = []
    for start in range(0, len(tokens), batch):
        part = tokens[start : start + batch]
        padded = np.concatenate([part, np.zeros((batch - len(part), tokens.shape[1]), tokens.dtype)])
        computed = _compiled_pass()(
            target, on_devices(padded, sharding), taps=taps, dtype=dtype.name, sharding=sharding
        )
        parts.append(to_host(computed)[: len(part)])
    return np.concatenate(parts)


@functools.cache
def _compiled_pass() -> Any:
    """Returns `_pass`, compiled with the options of an update, so that features are bitwise the same."""
    return jax.jit(_pass, static_argnames=("taps", "dtype", "sharding"), compiler_options=exact_reduction_options())


def _pass(
    target: LM, tokens: Int[Array, "b n"], *, taps: tuple[int, ...], dtype: str, sharding: Sharding | None
) -> Float[Array, "b n f"]:
    with traced_over(sharding):
        features = hidden_states(target, tokens, taps).astype(dtype)
    return features if sharding is None else sharding.keep(features, ((r"", P(DATA)),))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
