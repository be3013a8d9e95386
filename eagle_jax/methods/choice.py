"""The choice of drafter and tree, and the drafter that it gives for a batch."""

import dataclasses
from typing import Any

import jax

from eagle_jax.decoding.policy import DynamicTree, TreePolicy
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.shared import Shared
from eagle_jax.loading.model import Model
from eagle_jax.methods.budgets import budget_for, tree_of
from eagle_jax.methods.default_trees import ON_ACCELERATORS, cpu_default
from eagle_jax.methods.registry import METHODS, NAMES, TUNED, method_of
from eagle_jax.methods.tree_arguments import tree_is, tree_policy
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA

SMALLEST_TREE = DynamicTree(2, 0, 1)
FEW_ROWS = 2  # maximum batch size for which the smallest tree is tried on a CPU


@dataclasses.dataclass(frozen=True)
class Choice:
    """The arguments `drafter` and `tree`, checked against the model.

    Attributes:
        model: from `load`.
        method: name of the method; empty if the caller gave a `Drafter`.
        tree: policy of the tree; None if it depends on the method or the batch.
        by_batch: whether the tree depends on the batch (`tree="auto"`).
        drafter: the caller's `Drafter`, if one was given.
    """

    model: Any
    method: str = ""
    tree: TreePolicy | None = None
    by_batch: bool = False
    drafter: Drafter | None = None

    def for_batch(self, rows: int = 1, slots: int | None = None, prompt_ratio: float = 0.0) -> Drafter:
        """Returns the drafter for a batch of `rows` rows. The first that applies:

        1. The caller's drafter.
        2. The method with the given tree, or with fixed sizes if it has no choice of trees.
        3. With `tree="published"`, the method's published tree.
        4. With `tree="auto"`, the measured tree for this batch size (`budgets`).
        5. On an accelerator with few nodes per row, trees that share the batch's nodes.
        6. The default tree, which is smaller for more rows.

        In 4 and 6 it is plain decoding if no tree is faster.

        Args:
            slots: cache positions per row, if known.
            prompt_ratio: prompt tokens per token that answers may have.
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
        if budget is None and tree is not None and _shares_nodes(model, name, tree):
            return _shared_drafter(model, name, rows, tree)
        return _cached_drafter(model, "none" if tree is None else name, tree, small)

    def alternatives(self, rows: int, expected: Drafter) -> list[Drafter]:
        """Returns drafters that may be faster than `expected` for a batch of `rows` rows, with `tree="auto"`: the
        default tree, plain decoding, and for few rows on a CPU the smallest tree.
        """
        if not self.by_batch or self.method not in TUNED:
            return []
        default = default_tree(self.model, self.method, rows)
        trees = [] if default is None else [default]
        trees += [SMALLEST_TREE] if on_cpu() and rows <= FEW_ROWS else []
        drafters = [_cached_drafter(self.model, self.method, tree, on_cpu()) for tree in trees]
        return [drafter for drafter in (*drafters, Plain()) if drafter.shape != expected.shape]


def choose(model: Model, drafter: str | Drafter, tree: Any) -> Choice:
    """Checks the arguments; "auto" is the model's head, or else its draft model.

    Raises:
        ValueError: the drafter is unknown or the model lacks what it needs, or the tree is invalid for the drafter.
    """
    if isinstance(drafter, Drafter):
        if not tree_is(tree, "auto"):
            raise ValueError(f"tree={tree!r} with a drafter object, which has its own tree; leave tree out")
        return Choice(model, drafter=drafter)
    if not isinstance(drafter, str) or drafter not in NAMES:
        names = ", ".join(f'"{name}"' for name in NAMES)
        raise ValueError(f"drafter={drafter!r} is not known; expected one of {names}, or a Drafter")
    policy = tree_policy(tree)
    name = method_of(model, drafter)
    method = METHODS[name]
    if not method.has(model):
        needed, argument = method.needs
        option = "draft-model" if argument == "draft" else argument
        reason = _other_head(model) if argument == "head" and model.head else "the model has none"
        raise ValueError(f'drafter="{name}" needs {needed}, and {reason}; load it with {argument}= (--{option})')
    if method.trees is None and policy is not None:
        if name != "none":
            raise ValueError(
                f'drafter="{name}" has no choice of trees, got tree={tree!r}; expected "auto" or "published", or in '
                "Python a drafter object of the size you want"
            )
        policy = None
    if policy is not None:
        _cached_drafter(model, name, policy, False)  # raises if the method does not support the tree
    return Choice(model, name, policy, by_batch=tree_is(tree, "auto"))


def _other_head(model: Model) -> str:
    """Describes the head of a model whose head is of another method."""
    for name in TUNED:
        head_name, argument = METHODS[name].needs
        if argument == "head" and METHODS[name].has(model):
            return f'the model has {head_name}, which drafts with drafter="{name}"'
    return "the model has a head of another kind"


def drafter_for(model: Model, drafter: str | Drafter, tree: Any, rows: int = 1) -> Drafter:
    """Returns the drafter for the arguments, with a tree for `rows` rows."""
    return choose(model, drafter, tree).for_batch(rows)


def _cached_drafter(model: Model, name: str, policy: TreePolicy | None, small: bool) -> Drafter:
    """Returns the model's drafter of a method, from a cache."""
    key = name, policy, small
    if key not in model.drafters:
        model.drafters[key] = METHODS[name].make(model, policy, small)
    return model.drafters[key]


def default_tree(model: Model, name: str, rows: int, prompt_ratio: float = 0.0) -> TreePolicy | None:
    """Returns the tree of `tree="auto"` for a batch size without measurements; None if plain decoding is faster."""
    method, small = METHODS[name], on_cpu()
    groups = 1 if model.sharding is None else model.sharding.sizes[DATA]
    default = cpu_default(model) if small else ON_ACCELERATORS
    max_nodes = default.max_batch_nodes * groups // rows
    pays = max_nodes >= default.min_nodes and (prompt_ratio <= default.max_prompt_ratio or not method.needs[1])
    return method.trees(model, small, max_nodes) if pays and method.trees is not None else None


def _shares_nodes(model: Model, name: str, tree: TreePolicy) -> bool:
    """Returns whether requests share the batch's nodes: on one accelerator, if each has few nodes."""
    is_supported = name in TUNED and model.sharding is None and isinstance(model.target, LM)
    return is_supported and not on_cpu() and tree.nodes <= ON_ACCELERATORS.shared_nodes


def _shared_drafter(model: Model, name: str, rows: int, tree: TreePolicy) -> Drafter:
    """Returns the drafter that drafts twice as many nodes per request and verifies the batch's best ones."""
    key = "shared", name, rows
    if key not in model.drafters:
        trees = METHODS[name].trees
        large_tree = tree if trees is None else trees(model, False, 2 * tree.nodes)
        drafter, max_nodes = _cached_drafter(model, name, large_tree, False), max(rows, ON_ACCELERATORS.max_batch_nodes)
        model.drafters[key] = Shared(drafter, max_nodes) if rows * large_tree.nodes > max_nodes else drafter
    return model.drafters[key]


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"
