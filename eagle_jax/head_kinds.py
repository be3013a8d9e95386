"""Kinds of draft heads, one row each: what every room has of it, by name, imported where it is used.

A config says its kind (`config.kind`, and a head's `head.kind`), so no room asks for classes.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadKind:
    """Where the parts of a kind of head are, as `module` or `module:name` below `eagle_jax`.

    Attributes:
        title: what people call it.
        network: the head with its weights, an `AnyHead`.
        files: the module that reads and writes it, with the functions of `converters.heads.kinds.HeadFiles`.
        drafter: the method that drafts with it, a row of `methods.registry.METHODS`.
        convert: puts it into another format, as `converters.heads.renaming` does; empty where there is one alone.
        begin: makes the head that a training begins with (`training.heads.first`); empty if it is not trained here.
        loss: what a training minimises (`training.update`).
    """

    title: str
    network: str
    files: str
    drafter: str
    convert: str = ""
    begin: str = ""
    loss: str = ""

    @property
    def one(self) -> str:
        """The title with its article, where it has one."""
        return self.title if self.title.endswith("heads") else f"{'an' if self.title[0] in 'EM' else 'a'} {self.title}"

    def get(self, part: str) -> Any:
        """Returns the module or object that a field names."""
        return _resolve(getattr(self, part))


@functools.cache
def _resolve(name: str) -> Any:
    module, _, attribute = name.partition(":")
    imported = importlib.import_module(f"eagle_jax.{module}")
    return getattr(imported, attribute) if attribute else imported


def _eagle(title: str, network: str, drafter: str = "eagle", **parts: str) -> HeadKind:
    files, convert = "converters.heads.eagle", "converters.heads.renaming:eagle_head"
    return HeadKind(title=title, network=network, files=files, convert=convert, drafter=drafter, **parts)


def _block(title: str) -> HeadKind:
    return HeadKind(
        title=title,
        network="models.dflash:DFlash",
        files="converters.heads.dflash",
        convert="converters.heads.renaming:dflash_head",
        drafter="dflash",
        begin="training.dflash_head:begin",
        loss="training.dflash_loss:dflash_loss",
    )


def _side_by_side(title: str, name: str) -> HeadKind:
    return HeadKind(
        title=title,
        network=f"models.heads:{name.title()}",
        files=f"converters.heads.{name}",
        drafter=name,
        begin=f"training.parallel_heads:{name}",
        loss="training.heads_loss:heads_loss",
    )


# In the order in which files are asked whose they are: EAGLE's last, since others have tensors of the same names.
HEAD_KINDS: Mapping[str, HeadKind] = {
    "dflash": _block("DFlash head"),
    "dspark": _block("DSpark head"),
    "dflash2": _block("DFlash 2 head"),
    "medusa": _side_by_side("Medusa heads", "medusa"),
    "mtp": HeadKind(title="MTP layer", network="models.eagle:Head", files="converters.heads.mtp", drafter="eagle"),
    "hydra": _side_by_side("Hydra heads", "hydra"),
    "eagle1": _eagle(
        "EAGLE-1/2 head", "models.eagle:Head", begin="training.eagle_heads:eagle1", loss="training.loss:loss"
    ),
    "eagle3": _eagle(
        "EAGLE-3 head", "models.eagle3:Head3", begin="training.eagle_heads:eagle3", loss="training.loss:loss"
    ),
    "peagle": _eagle(
        "P-EAGLE head",
        "models.eagle3:Head3",
        drafter="peagle",
        begin="training.eagle_heads:eagle3",
        loss="training.peagle_loss:peagle_loss",
    ),
}
