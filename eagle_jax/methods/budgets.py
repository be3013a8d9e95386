"""Measured budgets: the fastest tree for a model on this machine, by batch size, for `tree="auto"`.

`eagle-jax tune`, and a server when it ends, save their measurements in a file in the user's cache folder. A model
without measurements gets a default tree.
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
from eagle_jax.durable import update_json
from eagle_jax.loading.model import Model
from eagle_jax.methods.tree_arguments import tree_policy
from eagle_jax.ops.dispatch import environment_settings
from eagle_jax.platform import cache_folder

VERSION = 3  # 2: scores changed; 3: trees with `min_probability`
MARGIN = 1.02  # minimum speedup of a tree over plain decoding; less is noise
TreeNumbers = tuple[int | float, ...]  # argument of `tree_policy`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The fastest tree for one model and method at one batch size.

    Attributes:
        device: name of the device.
        model: fingerprint of the weights' shapes and dtypes.
        mesh: mesh axes, such as `{"data": 2, "model": 4}`; empty on one device.
        method: name of the draft method.
        rows: batch size.
        slots: cache positions per row.
        tree: argument of `tree_policy` for the fastest tree; None if plain decoding is fastest.
        plain: tokens per second of plain decoding, all rows together.
        speed: tokens per second with the tree.
        by: "tune", or "engine" if measured while serving.
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
        """Key of the measurement; a later one with the same key replaces it."""
        return (*self.setup, self.rows, self.slots, self.by)

    @property
    def setup(self) -> tuple[Any, ...]:
        """Device, model, mesh and method."""
        return self.device, self.model, tuple(sorted(self.mesh.items())), self.method


def budget_for(model: Model, method: str, rows: int, slots: int | None = None) -> Budget | None:
    """Returns the measured budget for a batch size; None without a measurement.

    Uses the smallest measured batch size that is not below `rows`, whose tree is never larger. If all are smaller, the
    largest counts only if plain decoding was fastest there. The closest cache size is preferred. Measurements of an
    engine count for their exact batch size, and only if `eagle-jax tune` has not measured the model.
    """
    findings = read()
    if not findings:
        return None
    key = setup(model, method)
    candidates = [budget for budget in findings if budget.setup == key]
    # `min` below takes the first of equal batch sizes
    candidates.sort(key=lambda budget: abs(budget.slots - (slots or budget.slots)))
    tuned = [budget for budget in candidates if budget.by == "tune"]
    candidates = tuned or [budget for budget in candidates if budget.rows == rows]
    as_large = [budget for budget in candidates if budget.rows >= rows]
    if as_large:
        return min(as_large, key=lambda budget: budget.rows)
    largest = max(candidates, key=lambda budget: budget.rows, default=None)
    return largest if largest is not None and largest.tree is None else None


def tree_of(budget: Budget) -> DynamicTree | None:
    """Returns the tree of a budget; None for plain decoding."""
    if budget.tree is None:
        return None
    tree = tree_policy(budget.tree)
    if not isinstance(tree, DynamicTree):
        raise ValueError(f"{budget.tree} is not a dynamic tree")
    return tree


def numbers_of(tree: DynamicTree | None) -> TreeNumbers | None:
    """Returns `Budget.tree` of a tree."""
    if tree is None:
        return None
    if tree.min_probability and tree.is_chain:
        return tree.nodes, tree.min_probability
    last = (tree.min_probability,) if tree.min_probability else () if tree.beam is None else (tree.beam,)
    return tree.nodes, tree.depth_steps, tree.top_k, *last


def setup(model: Model, method: str) -> tuple[Any, ...]:
    """Returns `Budget.setup` of a model on this machine."""
    mesh = {} if model.sharding is None else dict(model.sharding.sizes)
    return device(), fingerprint(model, method), tuple(sorted(mesh.items())), method


def device() -> str:
    """Returns the device's name and the environment settings; on a CPU also the number of cores."""
    first = jax.devices()[0]
    cores = f", {os.cpu_count()} cores" if first.platform == "cpu" else ""
    variables = [f", {name}={value}" for name, value in environment_settings().items()]
    return f"{first.platform}: {first.device_kind}{cores}{''.join(variables)}"


def fingerprint(model: Model, method: str) -> str:
    """Returns a fingerprint of the shapes and dtypes of the target and of its head or draft model, with the limits of
    a head that shapes do not show; 16 hexadecimal digits.
    """
    drafting = model.draft if method == "draft-model" else model.head
    leaves, _ = jax.tree_util.tree_flatten_with_path((model.target, drafting))
    lines = [f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}" for path, leaf in leaves]
    limits = (getattr(drafting, name, None) for name in ("num_drafted", "max_children"))
    lines += [f"{limit}" for limit in limits if limit is not None]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def path() -> Path:
    """Returns the path of the file of budgets."""
    return _path(*(os.environ.get(name) for name in ("XDG_CACHE_HOME", "HOME", "USERPROFILE")))


@functools.lru_cache(maxsize=4)
def _path(*folders: str | None) -> Path:
    """Returns the path, cached for the folders in the environment, since every request needs it."""
    del folders
    return cache_folder() / "budgets.json"


def read() -> list[Budget]:
    """Returns all saved budgets; none for a damaged file or another version, which the next `save` replaces."""
    try:
        target_path = path()
        facts = target_path.stat()
        return list(_read(target_path, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino))
    except (OSError, ValueError):
        return []


@functools.lru_cache(maxsize=4)
def _read(path: Path, *facts: int) -> tuple[Budget, ...]:
    """Returns the budgets of a file, cached by its `stat`, since every request needs them; errors are not cached."""
    del facts
    content = json.loads(path.read_text())
    if (
        not isinstance(content, dict)
        or content.get("version") != VERSION
        or not isinstance(content.get("budgets"), list)
    ):
        return ()
    return tuple(budget for entry in content["budgets"] if (budget := _budget(entry)) is not None)


def save(budgets: Iterable[Budget]) -> Path:
    """Adds budgets to the file atomically and returns its path."""

    def content() -> dict[str, Any]:
        by_key = {budget.key: budget for budget in (*read(), *budgets)}
        return {"version": VERSION, "budgets": [dataclasses.asdict(budget) for budget in by_key.values()]}

    update_json(path(), content)
    return path()


def _budget(entry: Any) -> Budget | None:
    """Parses an entry of the file; returns None if it is invalid."""
    try:
        budget = Budget(**{**entry, "tree": entry["tree"] and tuple(entry["tree"])})
        tree_of(budget)
        is_valid = all(
            type(number) is int and number > 0 for number in (budget.rows, budget.slots, *budget.mesh.values())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return budget if is_valid else None
