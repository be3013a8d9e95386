"""Draft methods by name, with sizes for the machine."""

from collections.abc import Callable
from typing import Any, NamedTuple

from eagle_jax.decoding.policy import StaticTree, TreePolicy
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.calibrated import Calibrated
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.draft_model import DraftModel
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.hybrid import Hybrid
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.drafters.medusa import MedusaDrafter
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.rest import Rest
from eagle_jax.drafters.suffix import SuffixDecoding
from eagle_jax.drafters.token_recycling import TokenRecycling
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.loading.model import Model
from eagle_jax.methods.default_trees import (
    dflash_tree,
    draft_model_tree,
    eagle_tree,
    heads_tree,
    hybrid_tree,
    peagle_tree,
    recycling_tree,
)


class Method(NamedTuple):
    """One draft method.

    `small` selects sizes for CPUs, where every node costs arithmetic, instead of the published ones. It is set only for
    `tree="auto"` on a CPU.

    Attributes:
        title: name of the method on the server's page; empty if the page does not offer it.
        make: `make(model, policy, small)` returns the drafter; `policy` is None for methods without a choice of trees.
        trees: `trees(model, small, max_nodes)` returns the default tree with at most `max_nodes` nodes (2 or more; no
            limit by default); None for methods without a choice of trees.
        needs: what the model must have, and the argument of `load` for it.
        has: whether a model has it.
    """

    title: str
    make: Callable[[Any, Any, bool], Drafter]
    trees: Callable[..., TreePolicy] | None = None
    needs: tuple[str, str] = ("", "")
    has: Callable[[Any], bool] = lambda model: True


def _head_method(
    title: str, make: Callable[..., Drafter], name: str, trees: Callable[..., TreePolicy], *kinds: str
) -> Method:
    """Returns the method that drafts with heads of these kinds."""
    return Method(
        title,
        make=lambda model, policy, small: Calibrated.of(make(head=model.head, policy=policy), model.calibration),
        trees=trees,
        needs=(name, "head"),
        has=lambda model: model.head is not None and model.head.kind in kinds,
    )


def _head_kinds_of(drafter: str) -> tuple[str, ...]:
    """Returns the kinds of heads that a method drafts with."""
    return tuple(name for name, kind in HEAD_KINDS.items() if kind.drafter == drafter)


def _recycling(model: Any, policy: TreePolicy, small: bool) -> Drafter:
    if not isinstance(policy, StaticTree):
        raise ValueError(
            f'drafter="token-recycling" needs a tree of fixed shape, not {policy}; give the parents of its nodes, '
            'such as [-1, 0, 0, 1], or "eagle1"'
        )
    return TokenRecycling(policy=policy)


def _hybrid(model: Any, policy: TreePolicy, small: bool) -> Drafter:
    first = Calibrated.of(Eagle(head=model.head, policy=policy), model.calibration)
    return Hybrid(first, PromptLookup(shortest=2, copied=3 if small else 10))


def _rest(model: Any, policy: None, small: bool) -> Drafter:
    return Rest(model.datastore, lines=8, copied=3, nodes=4) if small else Rest(model.datastore)


METHODS = {
    "none": Method("", lambda model, policy, small: Plain()),
    "eagle": _head_method("EAGLE", Eagle, "an EAGLE head", eagle_tree, *_head_kinds_of("eagle")),
    "eagle1": _head_method("", Eagle, "an EAGLE-1 head", eagle_tree, "eagle1", "mtp"),
    "eagle3": _head_method("", Eagle, "an EAGLE-3 head", eagle_tree, "eagle3"),
    "peagle": _head_method("P-EAGLE", PEagle, "a P-EAGLE head", peagle_tree, *_head_kinds_of("peagle")),
    "dflash": _head_method("DFlash", DFlashDrafter, "a DFlash head", dflash_tree, *_head_kinds_of("dflash")),
    "medusa": _head_method("Medusa", MedusaDrafter, "Medusa heads", heads_tree, *_head_kinds_of("medusa")),
    "hydra": _head_method("Hydra", HydraDrafter, "Hydra heads", heads_tree, *_head_kinds_of("hydra")),
    "draft-model": Method(
        "a small model",
        lambda model, policy, small: Calibrated.of(DraftModel(model=model.draft, policy=policy)),
        trees=draft_model_tree,
        needs=("a small model", "draft"),
        has=lambda model: model.draft is not None,
    ),
    "token-recycling": Method("token recycling", _recycling, trees=recycling_tree),
    "prompt-lookup": Method("prompt lookup", lambda model, policy, small: PromptLookup(copied=3 if small else 10)),
    "suffix": Method(
        "suffix decoding",
        lambda model, policy, small: SuffixDecoding(nodes=4, copied=3, least=0.3) if small else SuffixDecoding(),
    ),
    "lookahead": Method(
        "Lookahead", lambda model, policy, small: Lookahead(window=2, ngram=3, guesses=2) if small else Lookahead()
    ),
    "rest": Method("REST", _rest, needs=("a datastore", "datastore"), has=lambda model: model.datastore is not None),
    "hybrid": Method(
        "EAGLE and prompt lookup",
        _hybrid,
        trees=hybrid_tree,
        needs=("an EAGLE head", "head"),
        has=lambda model: model.head is not None and HEAD_KINDS[model.head.kind].drafter == "eagle",
    ),
}
NAMES = ("auto", *METHODS)
# Methods with dynamic trees, whose budgets can be measured.
TUNED = (*sorted({kind.drafter for kind in HEAD_KINDS.values()}), "draft-model")


def method_of(model: Model, drafter: str) -> str:
    """Resolves "auto" to the model's method, and the names of EAGLE heads that the model has to "eagle"."""
    if drafter == "auto":
        drafting = [name for name in TUNED if METHODS[name].has(model)]
        return drafting[0] if drafting else "none"
    is_eagle = drafter in ("eagle1", "eagle3") and METHODS[drafter].has(model)
    return "eagle" if is_eagle else drafter
