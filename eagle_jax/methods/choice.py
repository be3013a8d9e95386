"""A drafter and a tree that were asked for, and what they are for a batch."""

import dataclasses
from typing import Any

import jax

from eagle_jax.decoding.policy import DynamicTree, TreePolicy
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.shared import Shared
from eagle_jax.loading.model import Model
from eagle_jax.methods.asked_trees import asked_tree, tree_is
from eagle_jax.methods.budgets import budget_for, tree_of
from eagle_jax.methods.default_trees import ON_ACCELERATORS, cpu_default
from eagle_jax.methods.registry import METHODS, NAMES, TUNED, method_of
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA

SMALLEST = DynamicTree(2, 0, 1)
FEW_ROWS = 2  # for which the smallest tree is tried on a CPU: there every row costs


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
        """Returns the drafter for a batch of `rows` rows: the first of these that there is.

        1. The caller's own.
        2. The method's, with the tree that was asked for, or sizes of its own if it has no trees to choose from.
        3. With `tree="published"` the method's own tree.
        4. With `tree="auto"` the tree that was measured to be the fastest for about so many rows, by `eagle-jax tune`
           or by an engine (`budgets`).
        5. On an accelerator, where each row has room for few nodes, trees that share it.
        6. The default tree: the more rows, the smaller.

        In 4 and 6 it is plain decoding where no tree pays.

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
            raise ValueError(f"tree={tree!r} with a drafter object, which has its own tree; leave tree out")
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
    max_nodes = default.max_batch_nodes * groups // rows
    pays = max_nodes >= default.min_nodes and (prompt_ratio <= default.max_prompt_ratio or not method.needs[1])
    return method.trees(model, small, max_nodes) if pays and method.trees is not None else None


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
