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
    """Makes `cls` a frozen dataclass and a pytree that unflattens without calling `__init__`.

    JAX rebuilds trees from placeholders (`eval_shape`, `vmap`, tree maps over `None`), which an `__init__` that checks
    shapes would refuse. The checks still run for values that people construct.
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
    """A pytree that is flattened once, and not again in each of many calls.

    Attributes:
        leaves: leaves of the tree.
        structure: its tree definition.
    """

    leaves: tuple[Any, ...]
    structure: Any = static()

    @classmethod
    def of(cls, tree: Any) -> "Packed":
        leaves, structure = jax.tree.flatten(tree)
        return cls(tuple(leaves), structure)


def unpacked(value: Any) -> Any:
    """Returns the tree of a `Packed`; other values as they are."""
    return jax.tree.unflatten(value.structure, value.leaves) if isinstance(value, Packed) else value


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that reads the attributes of these names as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda node: (getattr(node, names[0]),)) if names else (lambda node: ())
