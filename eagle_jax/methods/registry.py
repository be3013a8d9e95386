"""Drafters by name, with sizes that suit the machine."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from eagle_jax.decoding.policy import DynamicTree, StaticTree, TreePolicy
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
from eagle_jax.drafters.shared import Shared
from eagle_jax.drafters.suffix import SuffixDecoding
from eagle_jax.drafters.token_recycling import TokenRecycling
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.loading.model import Model
from eagle_jax.methods.asked_trees import asked_tree, tree_is
from eagle_jax.methods.budgets import budget_for, tree_of
from eagle_jax.methods.default_trees import (
    ON_ACCELERATORS,
    cpu_default,
    dflash_tree,
    draft_model_tree,
    eagle_tree,
    heads_tree,
    hybrid_tree,
    peagle_tree,
    recycling_tree,
)
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA


class Method(NamedTuple):
    """One way to draft.

    `small` asks for the sizes that pay on CPU cores, where every node costs arithmetic; else they are the published
    ones. It is so for `tree="auto"` on a CPU, and for nothing else.

    Attributes:
        title: what the page of the server calls it; empty for what it does not offer.
        make: `make(model, policy, small)`: the drafter, with the tree `policy` if the method has trees to choose from,
            else (None) with sizes of its own.
        trees: `trees(model, small, most)`: its tree when none is asked for, of `most` nodes at most (2 or more, without
            limit if left out); None where there are none to choose from.
        needs: what `load` must have been given, and as which argument.
        has: whether a model has that.
    """

    title: str
    make: Callable[[Any, Any, bool], Drafter]
    trees: Callable[..., TreePolicy] | None = None
    needs: tuple[str, str] = ("", "")
    has: Callable[[Any], bool] = lambda model: True


def _with_head(
    title: str, make: Callable[..., Drafter], name: str, trees: Callable[..., TreePolicy], *kinds: str
) -> Method:
    """Makes a row of the table for heads of some kinds."""
    return Method(
        title,
        make=lambda model, policy, small: Calibrated.of(make(head=model.head, policy=policy), model.calibration),
        trees=trees,
        needs=(name, "head"),
        has=lambda model: model.head is not None and model.head.kind in kinds,
    )


def _kinds(drafter: str) -> tuple[str, ...]:
    """Returns the kinds of heads that a method drafts with."""
    return tuple(name for name, kind in HEAD_KINDS.items() if kind.drafter == drafter)


def _recycling(model: Any, policy: TreePolicy, small: bool) -> Drafter:
    if not isinstance(policy, StaticTree):
        raise ValueError(
            f'drafter="token-recycling" drafts over a tree of fixed shape, not over {policy}; give the parents of its '
            'nodes, such as [-1, 0, 0, 1], or "eagle1"'
        )
    return TokenRecycling(policy=policy)


def _hybrid(model: Any, policy: TreePolicy, small: bool) -> Drafter:
    first = Calibrated.of(Eagle(head=model.head, policy=policy), model.calibration)
    return Hybrid(first, PromptLookup(shortest=2, copied=3 if small else 10))


def _rest(model: Any, policy: None, small: bool) -> Drafter:
    return Rest(model.datastore, lines=8, copied=3, nodes=4) if small else Rest(model.datastore)


METHODS = {
    "none": Method("", lambda model, policy, small: Plain()),
    "eagle": _with_head("EAGLE", Eagle, "an EAGLE head", eagle_tree, *_kinds("eagle")),
    "eagle1": _with_head("", Eagle, "an EAGLE-1 head", eagle_tree, "eagle1", "mtp"),
    "eagle3": _with_head("", Eagle, "an EAGLE-3 head", eagle_tree, "eagle3"),
    "peagle": _with_head("P-EAGLE", PEagle, "a P-EAGLE head", peagle_tree, *_kinds("peagle")),
    "dflash": _with_head("DFlash", DFlashDrafter, "a DFlash head", dflash_tree, *_kinds("dflash")),
    "medusa": _with_head("Medusa", MedusaDrafter, "Medusa heads", heads_tree, *_kinds("medusa")),
    "hydra": _with_head("Hydra", HydraDrafter, "Hydra heads", heads_tree, *_kinds("hydra")),
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
SMALLEST = DynamicTree(2, 0, 1)
FEW_ROWS = 2  # for which the smallest tree is tried on a CPU: there every row costs
# Methods that grow dynamic trees, whose budget can be measured.
TUNED = (*sorted({kind.drafter for kind in HEAD_KINDS.values()}), "draft-model")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A drafter and tree that were asked for, checked against the model.

    Attributes:
        model: from `load`.
        method: name of the method; empty for a `Drafter` of the caller's.
        tree: its tree; None where the method or the batch decides.
        by_batch: whether the batch decides: `tree="auto"`.
        drafter: the caller's.
    """

    model: Any
    method: str = ""
    tree: TreePolicy | None = None
    by_batch: bool = False
    drafter: Drafter | None = None

    def for_batch(self, rows: int = 1, slots: int | None = None, prompt_ratio: float = 0.0) -> Drafter:
        """Returns the drafter for a batch of `rows` rows.

        With `tree="auto"` it has the tree that `eagle-jax tune` found fastest for a number of concurrent answers, or
        else the default tree: the more rows a batch has, the smaller. Where no tree pays it is plain decoding.

        Args:
            slots: of that batch's caches, if known.
            prompt_ratio: its tokens of prompts for each that answers may have.
        """
        if self.drafter is not None:
            return self.drafter
        model, name, method = self.model, self.method, METHODS[self.method]
        small = self.by_batch and on_cpu()
        if method.trees is None or self.tree is not None:
            return _cached_drafter(model, name, self.tree, small)
        if not self.by_batch:
            return _cached_drafter(model, name, method.trees(model, small), small)
        budget = budget_for(model, name, rows, slots) if name in TUNED else None
        tree = default_tree(model, name, rows, prompt_ratio) if budget is None else tree_of(budget)
        if budget is None and tree is not None and _shares(model, name, tree):
            return _shared(model, name, rows, tree)
        return _cached_drafter(model, "none" if tree is None else name, tree, small)

    def others(self, rows: int, expected: Drafter) -> list[Drafter]:
        """Returns drafters that may be faster than the expected one for a batch of `rows` rows, with `tree="auto"`: the
        default tree where another was found, or where nodes are shared, plain decoding, and for few rows on a CPU the
        smallest tree.
        """
        if not self.by_batch or self.method not in TUNED:
            return []
        default = default_tree(self.model, self.method, rows)
        trees = [] if default is None else [default]
        trees += [SMALLEST] if on_cpu() and rows <= FEW_ROWS else []
        drafting = [_cached_drafter(self.model, self.method, tree, on_cpu()) for tree in trees]
        return [one for one in (*drafting, Plain()) if one.shape != expected.shape]


def choose(model: Model, drafter: str | Drafter, tree: Any) -> Choice:
    """Checks what was asked for; "auto" is the model's head if it has one, or its draft model.

    Raises:
        ValueError: a drafter that is not known, or that the model has nothing for; a tree that is not valid, or that
            the drafter cannot have.
    """
    if isinstance(drafter, Drafter):
        if not tree_is(tree, "auto"):
            raise ValueError(f"tree={tree!r} beside a drafter object, which has its own tree; leave tree out")
        return Choice(model, drafter=drafter)
    if not isinstance(drafter, str) or drafter not in NAMES:
        names = ", ".join(f'"{name}"' for name in NAMES)
        raise ValueError(f"drafter={drafter!r} is not known; expected one of {names}, or a Drafter")
    policy = asked_tree(tree)
    name = method_of(model, drafter)
    method = METHODS[name]
    if not method.has(model):
        what, argument = method.needs
        option = "draft-model" if argument == "draft" else argument
        lacks = _other_head(model) if argument == "head" and model.head else "the model has none"
        raise ValueError(f'drafter="{name}" needs {what}, and {lacks}; load it with {argument}= (--{option})')
    if method.trees is None and policy is not None:
        if name != "none":
            raise ValueError(
                f'drafter="{name}" has no choice of trees, got tree={tree!r}; expected "auto" or "published", or in '
                "Python a drafter object of the size you want"
            )
        policy = None
    if policy is not None:
        _cached_drafter(model, name, policy, False)  # a method may refuse a tree
    return Choice(model, name, policy, by_batch=tree_is(tree, "auto"))


def _other_head(model: Model) -> str:
    """Describes the head of a model whose head is of another method."""
    for name in TUNED:
        what, argument = METHODS[name].needs
        if argument == "head" and METHODS[name].has(model):
            return f'the model has {what}, which drafts with drafter="{name}"'
    return "the model has a head of another kind"


def drafter_for(model: Model, drafter: str | Drafter, tree: Any, rows: int = 1) -> Drafter:
    """Returns the drafter that was asked for, with a tree for `rows` rows."""
    return choose(model, drafter, tree).for_batch(rows)


def _cached_drafter(model: Model, name: str, policy: TreePolicy | None, small: bool) -> Drafter:
    """Returns the model's drafter of a method, made once."""
    key = name, policy, small
    if key not in model.drafters:
        model.drafters[key] = METHODS[name].make(model, policy, small)
    return model.drafters[key]


def default_tree(model: Model, name: str, rows: int, prompt_ratio: float = 0.0) -> TreePolicy | None:
    """Returns the tree that `tree="auto"` means for a batch of this size, where nothing was measured; None where no
    tree pays.

    Args:
        prompt_ratio: as in `Choice.for_batch`.
    """
    method, small = METHODS[name], on_cpu()
    groups = 1 if model.sharding is None else model.sharding.sizes[DATA]
    default = cpu_default(model) if small else ON_ACCELERATORS
    most = default.max_batch_nodes * groups // rows
    pays = most >= default.min_nodes and (prompt_ratio <= default.max_prompt_ratio or not method.needs[1])
    return method.trees(model, small, most) if pays and method.trees is not None else None


def _shares(model: Model, name: str, tree: TreePolicy) -> bool:
    """Returns whether requests draft more nodes than there is room for, and share it: where each has few on an
    accelerator.
    """
    can = name in TUNED and model.sharding is None and isinstance(model.target, LM)
    return can and not on_cpu() and tree.nodes <= ON_ACCELERATORS.shared_nodes


def _shared(model: Model, name: str, rows: int, tree: TreePolicy) -> Drafter:
    """Returns the drafter whose trees, of twice as many nodes as each request has room for, share that of all of
    them.
    """
    key = "shared", name, rows
    if key not in model.drafters:
        trees = METHODS[name].trees
        wide = tree if trees is None else trees(model, False, 2 * tree.nodes)
        drafter, room = _cached_drafter(model, name, wide, False), max(rows, ON_ACCELERATORS.max_batch_nodes)
        model.drafters[key] = Shared(drafter, room) if rows * wide.nodes > room else drafter
    return model.drafters[key]


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def method_of(model: Model, drafter: str) -> str:
    """Returns the name of the method that a name means: of what the model has for "auto", and one name for all EAGLE
    heads.
    """
    if drafter == "auto":
        drafting = [name for name in TUNED if METHODS[name].has(model)]
        return drafting[0] if drafting else "none"
    is_eagle = drafter in ("eagle1", "eagle3") and METHODS[drafter].has(model)
    return "eagle" if is_eagle else drafter
