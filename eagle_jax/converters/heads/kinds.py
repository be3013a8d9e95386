"""Heads of every kind, in and out: EAGLE's, DFlash's, Medusa's and Hydra's, told apart by their tensors' names."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from eagle_jax.configs.heads import EagleConfig, HydraConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names, quant_config, reading
from eagle_jax.converters.files import Weights, read_json
from eagle_jax.converters.heads import dflash, eagle, hydra, medusa, mtp, window
from eagle_jax.converters.overrides import overlaid
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.converters.writing import write_folder
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme

DFLASH, MEDUSA, HYDRA, MTP = "dflash", "medusa", "hydra", "mtp"

TITLES = {DFLASH: "DFlash", MEDUSA: "Medusa", HYDRA: "Hydra", MTP: "MTP"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Medusa or Hydra heads in a folder, checked by name, shape and dtype; no weight has been read.

    Attributes:
        config: what the tensors make.
        rules: what the tensors are called.
    """

    config: MedusaConfig | HydraConfig
    rules: tuple[names.Rule, ...]


def load_head(
    folder: str | pathlib.Path,
    target: LM,
    dtype: Any = None,
    *,
    changes: Mapping[str, Any] | None = None,
    scheme: Scheme | None = None,
) -> AnyHead:
    """The head in a folder: `config.json` and weights, safetensors first, else PyTorch's files through PyTorch.

    An embedding that comes with a head is dropped for the target's: unread from an EAGLE-1/2 head, which was trained
    with the target's; from an EAGLE-3 or DFlash head if it has the same values.

    Args:
        folder: a head's folder; of Medusa-2 and of a layer for multi-token prediction (MTP) that of the whole model,
            which is the target too.
        target: the model it drafts for.
        dtype: `float32`, `bfloat16` or `float16`; None keeps what the first matrix is stored in.
        changes: entries that take the place of those in `config.json`, such as `{"rope_theta": 10000.0}`;
            `sliding_window` is the window of its attention, however the config states windows.
        scheme: what to round its matrices to; None keeps what the folder holds. A head that is stored rounded stays
            as it is: that changes no text.

    Raises:
        FileNotFoundError: the folder, its config, or part of its weights is not there.
        ValueError: no head, one that does not fit the target, a config key or tensor that is not understood, or a
            damaged file.
        ImportError: the weights are PyTorch's and PyTorch is not installed.
    """
    wanted_dtype = None if dtype is None else names.float_dtype(dtype)
    weights = Weights(pathlib.Path(folder))
    if any(info.quant_type is not None for info in weights.info.values()):
        scheme = None
    if kind_of(weights.info) is None:
        return eagle.load_eagle(weights, target, wanted_dtype, changes or {}, scheme)
    if kind_of(weights.info) == DFLASH:
        return dflash.load(weights, target, wanted_dtype, changes or {}, scheme)
    if kind_of(weights.info) == MTP:
        return mtp.load(weights, target, wanted_dtype, changes or {}, scheme)
    checkpoint = read_heads(weights, target.config, changes or {})
    _check_fit(weights.folder, checkpoint.config, target.config)
    first = next(key for key in names.expected(checkpoint.rules, shapes(checkpoint.config)))
    chosen = names.stored_dtype(weights, first) if wanted_dtype is None else wanted_dtype
    params = reading.read_params(weights, checkpoint.rules, shapes(checkpoint.config), chosen, scheme=scheme)
    if isinstance(checkpoint.config, MedusaConfig):
        return Medusa(params=params, config=checkpoint.config)
    return Hydra(params=params, config=checkpoint.config)


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
    if isinstance(head.config, EagleConfig) and head.config.normed:
        raise ValueError("a layer for multi-token prediction (MTP) lies in its target's files; keep those")
    if isinstance(head, DraftHead):
        eagle.save_eagle(head, folder, format=format, target=target, target_name=target_name)
        return
    if isinstance(head, DFlash) and format in (None, *dflash.FORMATS):
        dflash.save(head, pathlib.Path(folder), format or DFLASH, eagle.verifier_for(target, target_name))
        return
    own = DFLASH if isinstance(head, DFlash) else MEDUSA if isinstance(head, Medusa) else HYDRA
    if format not in (None, own):
        others = "or 'speculators'" if own == DFLASH else "the only one"
        raise ValueError(f"format {format!r} is not one for a {TITLES[own]} head; expected {own!r}, {others}")
    if isinstance(head, Medusa):
        table, entries, file = medusa.rules(head.config), medusa.entries_for(head.config, target_name), medusa.FILE
    else:
        table, entries, file = hydra.rules(head.config), hydra.entries_for(head.config, target_name), hydra.FILE
    entries |= quant_config.describing(table, head.stored_params)
    write_folder(pathlib.Path(folder), entries, names.tensors(table, head.stored_params), file)


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    """`dflash`, `medusa`, `hydra` or `mtp` by the names of the tensors; None for anything else."""
    if dflash.holds(info):
        return DFLASH
    if medusa.holds(info):
        return MEDUSA
    if mtp.holds(info):
        return MTP
    return HYDRA if hydra.holds(info) else None


def read_heads(weights: Weights, target: LlamaConfig | None, changes: Mapping[str, Any]) -> Found:
    """Holds the files of Medusa or Hydra heads against their `config.json`.

    Args:
        target: the target's config; None if it is not at hand.
        changes: entries that take the place of those in `config.json`.

    Raises:
        ValueError: heads that are not understood.
    """
    path = weights.folder / "config.json"
    entries = overlaid(read_json(path), window.config_entries(changes))
    try:
        entries = quant_config.without(entries)
        if kind_of(weights.info) == MEDUSA:
            window.refuse(changes, "Medusa heads")
            checkpoint, aside = _medusa(weights, entries)
        else:
            checkpoint, aside = _hydra(weights, entries, target, changes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    names.check(weights, checkpoint.rules, shapes(checkpoint.config), aside)
    return checkpoint


@functools.cache
def shapes(config: MedusaConfig | HydraConfig) -> names.Params:
    """The parameter tree, of shapes; not to be changed."""
    key = jax.random.key(0)
    if isinstance(config, MedusaConfig):
        return jax.eval_shape(functools.partial(Medusa.init, config), key).params
    return jax.eval_shape(functools.partial(Hydra.init, config), key).params


def _medusa(weights: Weights, entries: Mapping[str, Any]) -> tuple[Found, tuple[str, ...]]:
    """The heads, and regular expressions of what may lie beside them."""
    prefix, config = medusa.prefix_of(weights.info), medusa.read_config(weights.info, entries)
    return Found(config=config, rules=medusa.rules(config, prefix)), medusa.ASIDE if prefix else ()


def _hydra(
    weights: Weights, entries: Mapping[str, Any], target: LlamaConfig | None, changes: Mapping[str, Any]
) -> tuple[Found, tuple[str, ...]]:
    config = hydra.read_config(weights.info, entries, target)
    if config.prefix is None:
        window.refuse(changes, "Hydra heads without a layer before them")
    else:
        config = dataclasses.replace(config, prefix=window.with_window(config.prefix, changes))
    return Found(config=config, rules=hydra.rules(config)), () if config.prefix is None else hydra.ASIDE


def _check_fit(folder: pathlib.Path, config: MedusaConfig | HydraConfig, target: LlamaConfig) -> None:
    """Refuses heads that were made for another target."""
    for name, what in (("hidden_size", "hidden states of {} numbers"), ("vocab_size", "a vocabulary of {} tokens")):
        ours, theirs = getattr(config, name), getattr(target, name)
        if ours != theirs:
            raise ValueError(
                f"the heads in {folder} were made for {what.format(ours)}; the target has {theirs}, so it is another "
                "model than theirs"
            )
