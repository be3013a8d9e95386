"""Loads and saves heads of every kind: each kind has a module, which detects its heads by tensor names."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names
from eagle_jax.converters.files import Weights
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme


class CheckedHead(NamedTuple):
    """A head's folder, checked against its config by name, shape and dtype; no weight has been read.

    Attributes:
        config: its configuration, with its `kind`.
        slots: the tensors of each parameter, by path.
        file: name of the weight file when it is written.
        unstated: descriptions of settings that follow from the target, where no target was given.
        side_files: names of further files that hold parts of the head.
    """

    config: Any
    slots: dict[str, names.Slot]
    file: str
    unstated: Mapping[str, str]
    side_files: tuple[str, ...] = ()


@runtime_checkable
class HeadFiles(Protocol):
    """Interface of the module for one kind of head (`HeadKind.files`).

    Attributes:
        FORMATS: formats that `save` and `convert` write.
    """

    FORMATS: tuple[str, ...]

    def kind_of(self, info: Mapping[str, TensorInfo]) -> str | None:
        """Returns the kind if these are tensors of such a head. Raises ValueError for names of two formats at once."""

    def format_of(self, entries: Mapping[str, Any]) -> str:
        """Returns the format of a folder with this `config.json`."""

    def check(self, weights: Weights, target: LlamaConfig | None) -> CheckedHead:
        """Checks the files against their config.

        Args:
            target: config of the model that the head drafts for, if known.

        Raises:
            ValueError: the head is not supported.
        """

    def load(
        self, weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None
    ) -> AnyHead:
        """Loads a head, as `load_head`."""

    def save(
        self, head: Any, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None
    ) -> None:
        """Saves a head, as `save_head`, in one of `FORMATS`; None is the first that can express the head."""


def load_head(
    folder: str | pathlib.Path,
    target: LM,
    dtype: Any = None,
    *,
    changes: Mapping[str, Any] | None = None,
    scheme: Scheme | None = None,
) -> AnyHead:
    """Loads the head in a folder: `config.json` and weights, from safetensors or else from PyTorch's files.

    The target's embedding replaces the head's: always for an EAGLE-1/2 head, which was trained with it; for an EAGLE-3
    or DFlash head if both have the same values.

    Args:
        folder: a head's folder; for Medusa-2 and for a layer for multi-token prediction (MTP) the folder of the target.
        target: the model that the head drafts for.
        dtype: `float32`, `bfloat16` or `float16`; None keeps the dtype of the first stored matrix.
        changes: entries that replace those in `config.json`, such as `{"rope_theta": 10000.0}`; `sliding_window` is
            the window of the head's attention, however the config states windows.
        scheme: type to quantize its matrices to; None keeps what the folder holds. A head that is stored quantized
            stays as it is: that changes no text.

    Raises:
        FileNotFoundError: the folder, its config, or part of its weights is missing.
        ValueError: no head, one that does not fit the target, an unsupported config key or tensor, or a damaged file.
        ImportError: the weights are PyTorch's and PyTorch is not installed.
    """
    float_dtype = None if dtype is None else names.float_dtype(dtype)
    weights = Weights(pathlib.Path(folder))
    if any(info.quant_type is not None for info in weights.info.values()):
        scheme = None
    return files_of(weights.info).load(weights, target, float_dtype, changes or {}, scheme)


def save_head(
    head: AnyHead,
    folder: str | pathlib.Path,
    *,
    format: str | None = None,
    target: LM | None = None,
    target_name: str | None = None,
) -> None:
    """Writes a head in safetensors; `load_head` reads it back.

    Args:
        format: `safeailab`, `sglang` or `speculators` for an EAGLE head (None: the first that can express the head),
            `dflash` (the authors') or `speculators` for a DFlash head, `medusa` or `hydra` for those.
        target: `safeailab` also writes its embedding with an EAGLE-1/2 head, since some readers require it;
            `speculators` describes the target in the config.
        target_name: the target's folder or hub name, written to the config for other readers (`speculators`, Medusa,
            Hydra).

    Raises:
        ValueError: the format is unknown, or its readers would misread the head.
        FileExistsError: the folder holds other weights.
    """
    files = HEAD_KINDS[head.kind].get("files")
    if files.FORMATS and format not in (None, *files.FORMATS):
        title, expected = HEAD_KINDS[head.kind].with_article, ", ".join(map(repr, files.FORMATS))
        raise ValueError(f"{format!r} is no format of {title}; expected one of {expected}")
    files.save(head, pathlib.Path(folder), format, target, target_name)


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    """Returns the kind of head that has these tensors, a key of `HEAD_KINDS`; None if they are not a head's.

    Raises:
        ValueError: tensors of two formats.
    """
    return next((kind for files in _modules() if (kind := files.kind_of(info)) is not None), None)


def files_of(info: Mapping[str, TensorInfo]) -> HeadFiles:
    """Returns the module for a head with these tensors; if they are not a head's, EAGLE's, whose error tells so."""
    return HEAD_KINDS[kind_of(info) or "eagle1"].get("files")


def _modules() -> list[HeadFiles]:
    """Returns each module once. Medusa comes before MTP: a target with an MTP layer may hold Medusa heads too."""
    return list({kind.files: kind.get("files") for kind in HEAD_KINDS.values()}.values())
