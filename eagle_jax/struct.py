"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Declares a field that belongs to the tree's structure (hashable, never traced)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def pytree(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass that flattens without calling `__init__`.

    JAX rebuilds trees from placeholders (`eval_shape`, `vmap`, tree maps over `None`). An `__init__` that checks shapes
    would refuse those, so unflattening writes the fields directly and the checks stay on for values that people
    construct.
    """
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # type: ignore[arg-type]  # mypy does not see that `frozen` is a dataclass
    dynamic = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    children, settings = _getter(dynamic), _getter(fixed)  # every call of a program flattens dozens of these
    keys = [jax.tree_util.GetAttrKey(name) for name in dynamic]

    def flatten_with_keys(node: T):
        return list(zip(keys, children(node), strict=True)), settings(node)

    def flatten(node: T):
        return children(node), settings(node)

    def unflatten(aux, children) -> T:
        node = object.__new__(frozen)
        for name, value in zip((*dynamic, *fixed), (*children, *aux), strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(frozen, flatten_with_keys, unflatten, flatten)
    return frozen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """A tree that was flattened once, for the many calls of programs that would flatten it each time.

    Attributes:
        leaves: of the tree.
        structure: of the tree.
    """

    leaves: tuple[Any, ...]
    structure: Any = static()

    @classmethod
    def of(cls, tree: Any) -> "Packed":
        leaves, structure = jax.tree.flatten(tree)
        return cls(tuple(leaves), structure)


def unpacked(value: Any) -> Any:
    """Returns the tree, if it was packed."""
    return jax.tree.unflatten(value.structure, value.leaves) if isinstance(value, Packed) else value


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that reads the attributes of these names as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda node: (getattr(node, names[0]),)) if names else (lambda node: ())
