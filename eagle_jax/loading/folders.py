"""Finds the folders of targets and heads: shipped ones, published pairs, and the user's."""

import functools
import importlib.resources
import os
import sys
from pathlib import Path
from typing import Any

from eagle_jax.converters import at_hand as pair_at_hand
from eagle_jax.converters import describe as describe_folder
from eagle_jax.converters import head_folder, known_pair, resolve, resolve_pair, target_folder
from eagle_jax.converters.describe import Description
from eagle_jax.converters.files import is_gguf
from eagle_jax.converters.heads import mtp
from eagle_jax.converters.hub.pairs import CARRIED
from eagle_jax.text.tokenizers import tokenizer_in

PAIR = Path(str(importlib.resources.files("eagle_jax"))) / "pair"
TOY = "toy"  # the name of the shipped pair
DEFAULT_TARGET = "smollm2-135m-instruct"
VARIABLE = "EAGLE_JAX_TARGET"  # environment variable that names another default target

SHIPPED_HEADS = {"eagle1": PAIR / "head", "eagle3": PAIR / "head_eagle3"}


def default_target(head: str | Path | None = None) -> str:
    """Returns the name of `load`'s default target.

    EAGLE_JAX_TARGET names it, or else it is SmolLM2, which is downloaded once. It is the toy with a shipped head, and
    if SmolLM2 cannot be downloaded, which is reported on stderr.

    Raises:
        FileNotFoundError: SmolLM2 cannot be downloaded, and `head` does not fit the toy.
    """
    if head is not None and str(head) in SHIPPED_HEADS and not Path(head).exists():
        return TOY
    name = os.environ.get(VARIABLE) or _downloaded_default()
    if name is None and head is not None:
        raise FileNotFoundError(
            f"head={str(head)!r} without a target, and {DEFAULT_TARGET} cannot be had; name its target"
        )
    return name or TOY


@functools.cache
def _downloaded_default() -> str | None:
    """Downloads SmolLM2 if needed and returns its name; None, with a line on stderr, if it cannot be downloaded."""
    try:
        if not at_hand(DEFAULT_TARGET):
            print(f"Downloading {DEFAULT_TARGET}, 93 MB, once ...", file=sys.stderr)
        download(DEFAULT_TARGET)
    except (OSError, ValueError) as error:
        print(f"eagle-jax: {error}; the toy pair of the package answers instead", file=sys.stderr)
        return None
    return DEFAULT_TARGET


def tokenizer_of(target: str | Path | None = None) -> Any:
    """Loads the tokenizer of a target without its weights; None if it has none. `target` is as in `load`."""
    return tokenizer_in(folders_of(target, None)[0])


def at_hand(name: str) -> bool:
    """Returns whether the target of a published pair is on this machine: in a folder, a package, or the hub's cache."""
    pair = known_pair(name)
    return pair is not None and pair_at_hand(pair)


def download(name: str) -> Path:
    """Downloads the target and head of a published pair if needed, and returns the target's folder or file.

    Raises:
        FileNotFoundError: the download failed.
        ValueError: `name` is not a pair's name, or the registry gave another file than expected.
    """
    pair = known_pair(name)
    if pair is None:
        raise ValueError(f"{name} is no published pair; eagle-jax models lists them")
    return resolve_pair(pair)[0]


def gguf_of(name: str) -> Path | None:
    """Returns the GGUF file of a published pair's target, downloaded if needed; None if the target is not GGUF.

    Raises:
        FileNotFoundError, ValueError: as `download`.
    """
    pair = known_pair(name)
    target = None if pair is None or pair.name not in CARRIED else target_folder(pair)
    return target if target is not None and is_gguf(target) else None


def describe(folder: str | Path) -> Description:
    """Describes a folder, a GGUF file or the target of a published pair, and whether it would load.

    Raises:
        FileNotFoundError, ValueError: folder, config or weight files are missing or damaged, or a pair's target is not
            on this machine.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    pair = None if Path(folder).exists() else known_pair(folder)
    if pair is None:
        return describe_folder(PAIR / "target" if is_toy(folder) else folder)
    if not pair_at_hand(pair):
        raise FileNotFoundError(
            f"{folder} is a published pair whose model is not on this machine; `eagle-jax models` tells its sizes, "
            f"`eagle-jax generate --target {folder} Hello` downloads it"
        )
    return describe_folder(target_folder(pair))


def folders_of(target: str | Path | None, head: str | Path | None) -> tuple[Path, Path | None]:
    """Returns the folders of `load`'s target and head, downloaded if needed; a folder wins over a pair of its name."""
    target = default_target(head) if target is None else target
    pair = known_pair(target)
    if pair is not None and head is None:
        return resolve_pair(pair)
    if means_mtp_layer(head):
        folder = PAIR / "target" if is_toy(target) else resolve(target) if pair is None else target_folder(pair)
        mtp.check_present(folder)
        return folder, folder
    if is_toy(target):
        return PAIR / "target", SHIPPED_HEADS["eagle1"] if head is None else folder_of_head(head)
    return (resolve(target) if pair is None else target_folder(pair)), None if head is None else folder_of_head(head)


MTP_LAYER = "mtp"  # value of `head` for the multi-token prediction layer in the target's files


def means_mtp_layer(head: str | Path | None) -> bool:
    """Returns whether `head` means the target's MTP layer, and not a folder of that name."""
    return str(head) == MTP_LAYER and not Path(MTP_LAYER).exists()


def is_toy(name: str | Path) -> bool:
    """Returns whether `name` means the shipped pair, and not a folder of that name."""
    return str(name) == TOY and not Path(name).exists()


def folder_of_head(head: str | Path) -> Path:
    """Returns the folder of a head; a folder wins over a shipped head or a pair of the same name."""
    if Path(head).exists():
        return resolve(head)
    if means_mtp_layer(head):
        raise ValueError(f"{MTP_LAYER} is a layer in a target's own files: load the target with it as its head")
    pair = known_pair(head)
    return SHIPPED_HEADS.get(str(head)) or (resolve(head) if pair is None else head_folder(pair))
