"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """A field that belongs to the tree's structure (hashable, never traced)."""
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

    def flatten_with_keys(node: T):
        children = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in dynamic]
        return children, tuple(getattr(node, name) for name in fixed)

    def flatten(node: T):
        return tuple(getattr(node, name) for name in dynamic), tuple(getattr(node, name) for name in fixed)

    def unflatten(aux, children) -> T:
        node = object.__new__(frozen)
        for name, value in zip((*dynamic, *fixed), (*children, *aux), strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(frozen, flatten_with_keys, unflatten, flatten)
    return frozen
