"""Heads of every kind, in and out: each has a module, which knows its own by the names of their tensors."""

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


class Checked(NamedTuple):
    """A head's folder, held against its config by name, shape and dtype; no weight has been read.

    Attributes:
        config: its sizes; it says its `kind`.
        slots: where its parameters lie in the files, by path.
        file: what the file of weights is called where it is written.
        unstated: settings that follow from a target that is not at hand, in words.
        side_files: names of further files that hold parts of it.
    """

    config: Any
    slots: dict[str, names.Slot]
    file: str
    unstated: Mapping[str, str]
    side_files: tuple[str, ...] = ()


@runtime_checkable
class HeadFiles(Protocol):
    """Interface of the module that reads and writes a kind of head (`HeadKind.files`).

    Attributes:
        FORMATS: what `save` and `convert` write.
    """

    FORMATS: tuple[str, ...]

    def kind_of(self, info: Mapping[str, TensorInfo]) -> str | None:
        """Returns the kind, if these are tensors of such a head. Raises ValueError if they are of two."""

    def format_of(self, entries: Mapping[str, Any]) -> str:
        """Returns the format of a folder with this `config.json`."""

    def check(self, weights: Weights, target: LlamaConfig | None) -> Checked:
        """Holds the files against their config.

        Args:
            target: the model it drafts for; None where it is not at hand.

        Raises:
            ValueError: a head that is not understood.
        """

    def load(
        self, weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None
    ) -> AnyHead:
        """Loads a head, as `load_head`."""

    def save(
        self, head: Any, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None
    ) -> None:
        """Saves a head, as `save_head`, in one of `FORMATS`, or None for the plainest that can express the head."""


def load_head(
    folder: str | pathlib.Path,
    target: LM,
    dtype: Any = None,
    *,
    changes: Mapping[str, Any] | None = None,
    scheme: Scheme | None = None,
) -> AnyHead:
    """Returns the head in a folder: `config.json` and weights, safetensors first, else PyTorch's files through PyTorch.

    An embedding that comes with a head is dropped for the target's: unread from an EAGLE-1/2 head, which was trained
    with the target's; from an EAGLE-3 or DFlash head if it has the same values.

    Args:
        folder: a head's folder; of Medusa-2 and of a layer for multi-token prediction (MTP) that of the whole model,
            which is the target too.
        target: the model it drafts for.
        dtype: `float32`, `bfloat16` or `float16`; None keeps what the first matrix is stored in.
        changes: entries that take the place of those in `config.json`, such as `{"rope_theta": 10000.0}`;
            `sliding_window` is the window of its attention, however the config states windows.
        scheme: type to quantize its matrices to; None keeps what the folder holds. A head that is stored quantized
            stays as it is: that changes no text.

    Raises:
        FileNotFoundError: the folder, its config, or part of its weights is not there.
        ValueError: no head, one that does not fit the target, a config key or tensor that is not understood, or a
            damaged file.
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
        format: of an EAGLE head `safeailab`, `sglang` or `speculators`; None is the first of them whose readers can run
            the head. Of a DFlash head `dflash`, the authors', or `speculators`. Medusa's and Hydra's have one format
            each, their name's.
        target: `safeailab`: also write its embedding with an EAGLE-1/2 head, for readers that insist on finding it
            there. `speculators`: say what it is.
        target_name: the target's folder or hub name, which the config names so that others' readers find it
            (`speculators`, Medusa, Hydra).

    Raises:
        ValueError: an unknown format, or a head that its readers would take for another one.
        FileExistsError: the folder holds other weights.
    """
    files = HEAD_KINDS[head.kind].get("files")
    if files.FORMATS and format not in (None, *files.FORMATS):
        one, expected = HEAD_KINDS[head.kind].one, ", ".join(map(repr, files.FORMATS))
        raise ValueError(f"{format!r} is no format of {one}; expected one of {expected}")
    files.save(head, pathlib.Path(folder), format, target, target_name)


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    """Returns the kind of the head whose tensors these are, a row of `HEAD_KINDS`; None if they are no head's.

    Raises:
        ValueError: tensors of two formats.
    """
    return next((kind for files in _modules() if (kind := files.kind_of(info)) is not None), None)


def files_of(info: Mapping[str, TensorInfo]) -> HeadFiles:
    """Returns the module for these tensors; EAGLE's for those of no head, which says what they are."""
    return HEAD_KINDS[kind_of(info) or "eagle1"].get("files")


def _modules() -> list[HeadFiles]:
    """Returns every kind's module once; a target with an MTP layer may hold Medusa heads too, which come first."""
    return list({kind.files: kind.get("files") for kind in HEAD_KINDS.values()}.values())
