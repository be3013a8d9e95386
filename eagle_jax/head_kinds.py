"""The kinds of draft heads, one row each, with the parts of each kind by name, imported on first use.

A config has its kind (`config.kind`, and a head `head.kind`), so no code dispatches on classes.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadKind:
    """The parts of one kind of head, as `module` or `module:name` in `eagle_jax`.

    Attributes:
        title: its name in messages.
        network: the head with its weights, an `AnyHead`.
        files: the module that reads and writes heads, with the functions of `converters.heads.kinds.HeadFiles`.
        drafter: name of the drafting method, a row of `methods.registry.METHODS`.
        convert: converts a head to another format (`converters.heads.renaming`); empty if there is only one format.
        begin: creates the head that training starts from (`training.heads.first`); empty if it cannot be trained.
        loss: the training loss (`training.update`).
    """

    title: str
    network: str
    files: str
    drafter: str
    convert: str = ""
    begin: str = ""
    loss: str = ""

    @property
    def with_article(self) -> str:
        """The title with its article, as in "an EAGLE-3 head"; plural titles have none."""
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


# In the order in which files are matched: EAGLE last, since other heads have tensors of the same names.
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
