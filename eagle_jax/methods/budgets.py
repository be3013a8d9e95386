"""The tree that was found fastest for a model on this machine, by batch size: what `tree="auto"` follows.

`eagle-jax tune` measures and keeps its findings in a file of the user's cache folder, and so does a server that ends,
for those numbers of requests that it had. A model without findings gets a default tree.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.durable import rewrite
from eagle_jax.loading.model import Model
from eagle_jax.methods.asked_trees import asked_tree
from eagle_jax.ops.dispatch import environment_settings
from eagle_jax.platform import cache_folder

VERSION = 3  # 1: scores were twice as sure; 2: a chain had a guess less likely than `least`

MARGIN = 1.02  # what a tree has to gain over plain decoding: less than that is chance
TreeNumbers = tuple[int | float, ...]  # as `asked_tree` takes them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What was found for one model and method at one batch size.

    Attributes:
        device: what it was measured on.
        model: fingerprint of the weights' shapes and dtypes.
        mesh: how it was spread, such as `{"data": 2, "model": 4}`; empty on one device.
        method: name of the way to draft.
        rows: answers decoded together.
        slots: of the caches.
        tree: (nodes, depth, top_k) of the fastest tree, and its beam, or the probability that it ends below, if it has
            one, or (nodes, least) of a chain; None if none is faster than plain decoding.
        plain: tokens a second of plain decoding, all rows together.
        speed: tokens a second with the tree.
        by: "tune", or "engine": measured while it answered.
    """

    device: str
    model: str
    mesh: dict[str, int]
    method: str
    rows: int
    slots: int
    tree: TreeNumbers | None
    plain: float
    speed: float
    by: str = "tune"

    @property
    def key(self) -> tuple[Any, ...]:
        """What it was found for, and by what; a later finding for the same takes its place."""
        return (*self.place, self.rows, self.slots, self.by)

    @property
    def place(self) -> tuple[Any, ...]:
        """What it was found for, load apart."""
        return self.device, self.model, tuple(sorted(self.mesh.items())), self.method


def budget_for(model: Model, method: str, rows: int, slots: int | None = None) -> Budget | None:
    """Returns the measured budget for a load; None without a measurement. It is the one found at the same batch size,
    or at the next larger one that was tried, which drafts no more than this one could; beyond the largest there is only
    one thing to know: that plain decoding was faster already. Of several cache sizes at that batch size the closest
    counts. What an engine found counts for its batch size alone, and only where `eagle-jax tune` found nothing for the
    model.
    """
    findings = read()
    if not findings:
        return None
    key = place(model, method)
    candidates = [one for one in findings if one.place == key]
    candidates.sort(key=lambda one: abs(one.slots - (slots or one.slots)))  # of equal batch sizes the first counts
    tuned = [one for one in candidates if one.by == "tune"]
    candidates = tuned or [one for one in candidates if one.rows == rows]
    as_large = [one for one in candidates if one.rows >= rows]
    if as_large:
        return min(as_large, key=lambda one: one.rows)
    largest = max(candidates, key=lambda one: one.rows, default=None)
    return largest if largest is not None and largest.tree is None else None


def tree_of(budget: Budget) -> DynamicTree | None:
    """Returns its tree; None is plain decoding."""
    if budget.tree is None:
        return None
    tree = asked_tree(budget.tree)
    if not isinstance(tree, DynamicTree):
        raise ValueError(f"{budget.tree} are not the numbers of a tree")
    return tree


def numbers_of(tree: DynamicTree | None) -> TreeNumbers | None:
    """Returns `Budget.tree` of a tree."""
    if tree is None:
        return None
    if tree.min_probability and tree.is_chain:
        return tree.nodes, tree.min_probability
    more = (tree.min_probability,) if tree.min_probability else () if tree.beam is None else (tree.beam,)
    return tree.nodes, tree.depth_steps, tree.top_k, *more


def place(model: Model, method: str) -> tuple[Any, ...]:
    """Returns `Budget.place` of a model here."""
    mesh = {} if model.sharding is None else dict(model.sharding.sizes)
    return device(), fingerprint(model, method), tuple(sorted(mesh.items())), method


def device() -> str:
    """Returns the name of the device, on CPU with the number of its cores; and with which backends, where some were
    asked for.
    """
    first = jax.devices()[0]
    cores = f", {os.cpu_count()} cores" if first.platform == "cpu" else ""
    variables = [f", {name}={value}" for name, value in environment_settings().items()]
    return f"{first.platform}: {first.device_kind}{cores}{''.join(variables)}"


def fingerprint(model: Model, method: str) -> str:
    """Returns shapes and dtypes of the target's weights and of what drafts, as sixteen hexadecimal digits.

    How many tokens one pass of a head drafts shows in no shape, nor how many there are to choose among.
    """
    drafting = model.draft if method == "draft-model" else model.head
    leaves, _ = jax.tree_util.tree_flatten_with_path((model.target, drafting))
    lines = [f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}" for path, leaf in leaves]
    limits = (getattr(drafting, name, None) for name in ("num_drafted", "max_children"))
    lines += [f"{limit}" for limit in limits if limit is not None]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def path() -> Path:
    """Returns the file of findings."""
    return _path(*(os.environ.get(name) for name in ("XDG_CACHE_HOME", "HOME", "USERPROFILE")))


@functools.lru_cache(maxsize=4)
def _path(*folders: str | None) -> Path:
    """Returns the same, as long as the environment names these folders: every request asks."""
    del folders
    return cache_folder() / "budgets.json"


def read() -> list[Budget]:
    """Returns all findings. A file that is damaged, or of another version, holds none; the next finding replaces it."""
    try:
        target_path = path()
        facts = target_path.stat()
        return list(_read(target_path, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino))
    except (OSError, ValueError):
        return []


@functools.lru_cache(maxsize=4)
def _read(path: Path, *facts: int) -> tuple[Budget, ...]:
    """Returns the same of a file, as it is as long as these facts are: every request asks. A file that cannot be read
    is an error, which is not remembered.
    """
    del facts
    content = json.loads(path.read_text())
    if (
        not isinstance(content, dict)
        or content.get("version") != VERSION
        or not isinstance(content.get("budgets"), list)
    ):
        return ()
    return tuple(budget for entry in content["budgets"] if (budget := _budget(entry)) is not None)


def keep(budgets: Iterable[Budget]) -> Path:
    """Adds findings to the file, in one step."""

    def content() -> dict[str, Any]:
        by_key = {one.key: one for one in (*read(), *budgets)}
        return {"version": VERSION, "budgets": [dataclasses.asdict(one) for one in by_key.values()]}

    rewrite(path(), content)
    return path()


def _budget(entry: Any) -> Budget | None:
    """Returns an entry of the file; None if this version does not write such entries."""
    try:
        budget = Budget(**{**entry, "tree": entry["tree"] and tuple(entry["tree"])})
        tree_of(budget)
        is_valid = all(
            type(number) is int and number > 0 for number in (budget.rows, budget.slots, *budget.mesh.values())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return budget if is_valid else None
